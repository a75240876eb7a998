"""``manage.py fairque_outbox``: entries in the databases' outboxes, and the reasons why they wait."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError
from django.db.models import Count, Min, Q
from django.utils import timezone

from django_fairque.conf import get_config
from django_fairque.management.base import PrintingCommand
from django_fairque.management.listing import Column, Listing
from django_fairque.models import OutboxEntry
from django_fairque.monitoring.formatting import duration, number, pluralize
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.outbox.relay import outboxes, relay


class Command(PrintingCommand):
    help = (
        "Show what waits in the outboxes: tasks of committed transactions that their queue does not have yet.\n"
        "Exits with 1 while something there can't be relayed as it is."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="only this one (default: all that have an outbox)")
        parser.add_argument(
            "--relay", action="store_true", help="relay all of it now, also what waits to be tried again later"
        )

        OUTBOX_LIST.add_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        known = outboxes()
        wanted = options["database"]
        if wanted and wanted not in known:
            raise CommandError(f"no outbox in a database {wanted!r}; there is one in {', '.join(map(repr, known))}")
        try:
            stuck = sum(self._database(alias, options) for alias in ([wanted] if wanted else known))
        except ValueError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"{error}; has `migrate` run?") from error
        if not (get_config().outbox or options["json"]):
            self.write_lines("The outbox is off: nothing new is written into it (OUTBOX in settings.FAIRQUE).")
        if stuck:
            raise SystemExit(1)

    def _database(self, alias: str, options: dict[str, Any]) -> int:
        """Relay the outbox entries of one database if requested, and show the remaining entries. Return the number of
        stuck entries.
        """
        entries = OutboxEntry.objects.using(alias)
        is_json = options["json"]
        if options["relay"]:
            entries.filter(retry_at__isnull=False).update(retry_at=None)
            relayed = _relay_all(alias)
            if not is_json:
                self.write_lines(f"database {alias}: {pluralize(relayed, 'task')} relayed")
        facts = entries.aggregate(
            all=Count("pk"),
            stuck=Count("pk", filter=Q(is_stuck=True)),
            oldest=Min("created_at"),
            failing=Count("pk", filter=Q(attempts__gt=0)),
        )
        if is_json:
            self.write_lines(*OUTBOX_LIST.lines(entries.order_by("id").iterator(), options))
        elif not facts["all"]:
            self.write_lines(f"database {alias}: nothing waits")
        else:
            age = (timezone.now() - facts["oldest"]).total_seconds()
            self.write_lines(
                f"database {alias}: {number(facts['all'])} wait, the oldest for {duration(age)}; "
                f"{number(facts['failing'])} have failed, {number(facts['stuck'])} are stuck"
            )
            failing = entries.filter(attempts__gt=0).order_by("id")
            if facts["failing"]:
                self.write_lines(*(f"  {line}" for line in OUTBOX_LIST.lines(failing.iterator(), options)))
        return int(facts["stuck"])


def _relay_all(alias: str) -> int:
    count = 0
    while True:
        relayed = relay(alias)
        count += relayed.tasks
        if relayed.error is not None:
            raise CommandError(f"database {alias}: {pluralize(count, 'task')} relayed, then: {relayed.error}")
        if not relayed.more:
            return count


def _fields(entry: OutboxEntry) -> dict[str, Any]:
    return {
        "database": entry._state.db,
        "task": entry.name,
        "queue": entry.queue,
        "user": entry.user_id,
        "id": entry.task_id,
        "created": entry.created_at.timestamp(),
        "attempts": entry.attempts,
        "is_stuck": entry.is_stuck,
        "error": redacted_text(entry.last_error),
    }


OUTBOX_LIST: Listing[OutboxEntry] = Listing(
    "task",
    [
        Column("task", lambda entry: entry.name or "-", lambda entry: entry.name),
        Column("queue", lambda entry: entry.queue, lambda entry: entry.queue),
        Column("user", lambda entry: entry.user_id, lambda entry: entry.user_id),
        Column("id", lambda entry: entry.task_id),
        Column("attempts", lambda entry: number(entry.attempts), lambda entry: entry.attempts, is_number=True),
        Column("last error", lambda entry: redacted_text(entry.last_error)),
    ],
    fields=_fields,
    limit=20,
    moment=lambda entry: entry.created_at.timestamp(),
    moment_name="that were written",
)
