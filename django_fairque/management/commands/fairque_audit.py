"""``manage.py fairque_audit``: who changed a queue, what was changed, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError

from django_fairque.audit import KEPT_DAYS, list_values, read_entries
from django_fairque.management.base import Parser, QueueCommand, when
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.redaction import redacted_text

if TYPE_CHECKING:
    from django_fairque.engine.scripting.acts import Values
    from django_fairque.models import AuditEntry


class Command(QueueCommand):
    help = (
        f"List the acts on a queue in the last {KEPT_DAYS} days, the newest first: who did what to which object, through what "
        "(the admin, a command, fairque_top, code that names an actor), and the values before and after."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--actor", metavar="NAME", help="only those of this person or program")
        parser.add_argument("--kind", metavar="KIND", help="only those on objects of this kind, such as user or limit")
        parser.add_argument("--object", dest="subject", metavar="ID", help="only those on the object with this id")
        AUDIT_LIST.add_options(parser)

    def run(self) -> None:
        entries = read_entries().filter(queue=self.queue.name)
        for name in ("actor", "kind", "subject"):
            if self.options[name]:
                entries = entries.filter(**{name: self.options[name]})
        try:
            for line in AUDIT_LIST.lines(entries.iterator(), self.options):
                self.write_lines(line)
        except (DatabaseError, ImproperlyConfigured) as error:
            raise CommandError(f"{error}; has `migrate` run? Without the table, acts are in the log") from error


def _values(values: Values) -> str:
    return redacted_text(", ".join(f"{name} {text}" for name, text in list_values(values))) or "-"


def _fields(entry: AuditEntry) -> dict[str, Any]:
    return {
        "id": entry.pk,
        "at": entry.at.timestamp(),
        "actor": entry.actor,
        "source": entry.source,
        "act": entry.act,
        "kind": entry.kind,
        "object": entry.subject,
        "before": {name: _redacted(value) for name, value in entry.before.items()},
        "after": {name: _redacted(value) for name, value in entry.after.items()},
        "text": redacted_text(entry.text),
    }


def _redacted(value: Any) -> Any:
    return redacted_text(value) if isinstance(value, str) else value


AUDIT_LIST: Listing[AuditEntry] = Listing(
    "act",
    [
        Column("when", lambda entry: when(entry.at.timestamp()), lambda entry: entry.at),
        Column("actor", lambda entry: entry.actor, lambda entry: entry.actor),
        Column("through", lambda entry: entry.source, lambda entry: entry.source),
        Column("act", lambda entry: entry.act, lambda entry: entry.act),
        Column("object", lambda entry: f"{entry.kind} {entry.subject}".strip(), lambda entry: entry.subject),
        Column("before", lambda entry: _values(entry.before)),
        Column("after", lambda entry: _values(entry.after)),
    ],
    fields=_fields,
    limit=50,
    moment=lambda entry: entry.at.timestamp(),
    moment_name="that were done",
)
