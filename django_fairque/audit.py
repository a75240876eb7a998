"""The audit log: actions on queues, each with the actor, the time, the object, and the values before and after.

Entries are stored in the database (`AuditEntry`) for `KEPT_DAYS` days. If an entry can't be written to the database, it
is logged, because an action must not fail if the database is unavailable.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from django_fairque.engine.model.durations import positive_us
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.pauses import RESUMED, parse_moment, pause_fields, pause_values
from django_fairque.engine.model.plans import check_limit_value, check_weight, rate_fields
from django_fairque.engine.scripting.acts import Act, Recorder, Values, merge_acts, recording
from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.models import AuditEntry

KEPT_DAYS = 90
"""Days for which an entry is kept. Older entries are removed when a new entry is written."""
MAX_SUBJECT_CHARACTERS = 256

logger = get_logger("django_fairque.audit")


@contextmanager
def acting_as(actor: str, *, source: str = "code") -> Iterator[None]:
    """Record each change of a queue inside a ``with`` block in the audit log, as an action of ``actor``.

    ``actor`` is the name of a person or a program, at most 256 characters. ``source`` is the origin of the change in
    the audit log; "code" by default. Returns a context manager, which applies only to this thread or coroutine. Raises
    `TaskValidationError` if ``actor`` is not a text, empty or too long.

        with acting_as("billing"):
            get_queue().user("acme").set_weight(2)
    """
    if not (isinstance(actor, str) and 0 < len(actor) <= MAX_SUBJECT_CHARACTERS):
        raise TaskValidationError(
            f"actor must be a text of 1 to {MAX_SUBJECT_CHARACTERS} characters, got {short(actor)}"
        )

    def write(act: Act) -> None:
        write_entry(actor, source, act)

    with recording(Recorder(write, lambda function: sync_to_async(function)())):
        yield


@contextmanager
def collect_acts() -> Iterator[list[Act]]:
    """Yield a list to which each action of the block is added, so that one entry can record all of them."""
    acts: list[Act] = []
    with recording(Recorder(acts.append)):
        yield acts


@contextmanager
def acting_once_as(actor: str, source: str) -> Iterator[None]:
    """Write one entry for all changes in a ``with`` block, even if an error ends the block."""
    with collect_acts() as acts:
        try:
            yield
        finally:
            if acts:
                write_entry(actor, source, merge_acts(acts))


def write_entry(
    actor: str, source: str, act: Act, *, text: str = "", earlier: AuditEntry | None = None
) -> AuditEntry | None:
    """Write an action to the audit log, and remove old entries. Return the entry; None if it could only be logged.

    Args:
        actor: the name of the person or program.
        source: the origin of the action: "admin", "command", "fairque_top" or "code".
        act: the action.
        text: the sentence that the actor saw.
        earlier: the existing entry of the same action, if this is a further part of the action. The entry is extended.
    """
    from django_fairque.models import AuditEntry

    if earlier is not None:
        act = merge_acts([Act(act.queue, act.name, act.kind, act.subject, earlier.before, earlier.after), act])
    if len(act.subject) > MAX_SUBJECT_CHARACTERS:
        text = f"{text} {act.subject}".strip()
    entry = AuditEntry(
        pk=None if earlier is None else earlier.pk,
        at=timezone.now(),
        actor=_clean(actor),
        source=source,
        queue=act.queue,
        act=act.name[:64],
        kind=act.kind,
        subject=_clean(act.subject)[:MAX_SUBJECT_CHARACTERS],
        before={name: _clean(value) for name, value in act.before.items()},
        after={name: _clean(value) for name, value in act.after.items()},
        text=_clean(text),
    )
    try:
        # Use a separate transaction, so that an error here does not break a transaction that is already open.
        with transaction.atomic(using=AuditEntry.objects.db):
            entry.save(using=AuditEntry.objects.db)
            _old_entries().delete()
    except Exception as error:  # noqa: BLE001 - whatever it is, the act was done
        what = f"{act.name} {act.kind} {act.subject}".strip()
        values = json.dumps([act.before, act.after], default=str)
        logger.warning(
            "queue %s: %s by %s (%s), before and after: %s; the audit can't be written to the database: %s",
            *(act.queue, what, actor, source, values, error),
        )
        return None
    return entry


def read_entries() -> QuerySet[AuditEntry]:
    """Return the entries of the last `KEPT_DAYS` days, the newest first."""
    from django_fairque.models import AuditEntry

    entries: QuerySet[AuditEntry] = AuditEntry.objects.filter(at__gte=_oldest_moment()).order_by("-pk")
    return entries


UNDOABLE_ACTS = frozenset(("pause", "resume", "weight", "limits"))
"""The acts on a user, an organization or the queue whose values `undo_settings` can set back."""
UNDO_SECONDS = 86_400
"""Seconds after an entry within which its values can be set back."""


def can_undo(entry: AuditEntry) -> bool:
    """Return whether `undo_settings` applies to the entry."""
    is_recent = timezone.now() - entry.at < timedelta(seconds=UNDO_SECONDS)
    return (
        UNDOABLE_ACTS.issuperset(entry.act.split(", "))
        and entry.kind in ("user", "organization", "queue")
        and is_recent
    )


def undo_settings(queue: FairQueue, entry: AuditEntry) -> None:
    """Set a pause, weight or limit back to the values before the entry, if they are still those after it.

    Raises `ValueError` if one of them was changed since, or if the entry can't be undone.
    """
    if not can_undo(entry) or entry.queue != queue.name:
        names = ", ".join(sorted(UNDOABLE_ACTS))
        raise ValueError(
            f"this can't be undone: only {names} of the last 24 hours, of a user, an organization or the queue"
        )
    of = {"user": queue.user, "organization": queue.organization}.get(entry.kind)
    target: Any = of(entry.subject) if of else queue
    stats = target.stats() if of else queue.get_stats()
    before = {name: entry.before.get(name) for name in {**entry.before, **entry.after} if name != "error"}
    found = {**vars(stats), **pause_values(stats.pause)}
    for name in before:
        if found.get(name) != entry.after.get(name):
            raise ValueError(
                f"{name} is {found.get(name)} now, and no longer {entry.after.get(name)}; nothing was changed"
            )
    after = {name: entry.after.get(name) for name in before}
    is_pause = bool(before.keys() & {"paused", "note", "until"})
    act = ("pause" if {**found, **before}["paused"] else "resume") if is_pause else entry.act
    fields, expected = (_fields_of({**found, **values}, before.keys()) for values in (before, after))
    if not target.change_if(act, fields, expected):
        raise ValueError(
            f"{entry.kind} {entry.subject or queue.name} was changed at the same moment; nothing was undone"
        )


def _fields_of(values: Values, names: Collection[str]) -> dict[str, object]:
    """Return the fields of the record of a user, an organization or the queue that have the values with these names."""
    fields: dict[str, object] = {}
    if not {"paused", "note", "until"}.isdisjoint(names):
        until = parse_moment(values["until"])
        fields |= pause_fields(values["note"] or "", until, None) if values["paused"] else RESUMED
    if not {"rate", "burst"}.isdisjoint(names):
        fields |= rate_fields(values["rate"], values["burst"] or 1)
    if "weight" in names:
        fields["weight"] = check_weight(values["weight"])
    if "sla" in names:
        fields["sla"] = "" if values["sla"] is None else positive_us(values["sla"], "sla")
    numbers = {"max_running": "cap", "max_backlog": "backlog", "max_backlog_bytes": "max_bytes"}
    return {**fields, **{numbers[name]: check_limit_value(name, values[name]) for name in numbers.keys() & names}}


def _old_entries() -> QuerySet[AuditEntry]:
    from django_fairque.models import AuditEntry

    entries: QuerySet[AuditEntry] = AuditEntry.objects.filter(at__lt=_oldest_moment())
    return entries


def _oldest_moment() -> datetime:
    return timezone.now() - timedelta(days=KEPT_DAYS)


def list_values(values: Values) -> list[tuple[str, str]]:
    """Return the name and the text of each value."""
    return [(name, _describe_value(value)) for name, value in values.items()]


def _describe_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _clean(value: Any) -> Any:
    """Remove NUL characters, which PostgreSQL can't store."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value
