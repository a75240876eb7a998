"""Handing over what a database asks for: an outbox's tasks, each once, and the counts of the model events behind tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.dependencies.graph import check_graph, check_refusal
from django_fairque.engine.model.durations import seconds, to_us
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.records import EventCount
from django_fairque.engine.pushing.push import NOWHERE, Elsewhere, push_args, push_results
from django_fairque.engine.scripting.commands import MAX_BATCH
from django_fairque.engine.scripting.operations import Read, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django_fairque.engine.model.records import PushResult
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands

REMEMBERED = 30 * 86_400.0
"""Seconds for which it is known that a row was delivered, should nobody come to remove it: beyond any outage."""
REMEMBERED_AFTER = 600.0
"""Seconds for which it is known once the row is gone: longer than anybody holds on to a row that was read."""
MAX_ERROR = 500


def deliver(
    commands: Commands,
    tasks: Sequence[Task],
    counts: Mapping[str, EventCount],
    *,
    run_id: str = "",
    is_graph: bool = False,
    from_outbox: bool = False,
    now: float | None = None,
    elsewhere: Elsewhere = NOWHERE,
) -> Steps[list[PushResult]]:
    """At most `MAX_BATCH` tasks, or a graph, and at most `MAX_BATCH` counts, in one call."""
    if is_graph:
        check_graph(tasks)
    elif max(len(tasks), len(counts)) > MAX_BATCH:
        raise TaskValidationError(f"at most {MAX_BATCH} tasks and events are delivered in one call")
    args: list[Any] = [to_us(REMEMBERED) if from_outbox else 0, len(counts)]
    for event, count in counts.items():
        args += [event, count.fired, count.coalesced, count.failed, count.error[:MAX_ERROR]]
    _kept, *rest = push_args(commands, tasks, run_id, is_graph=is_graph, elsewhere=elsewhere)
    reply = yield commands.call("deliver", [*args, 1, *rest], now, reply=new_nonce())
    if is_graph:
        check_refusal(commands, tasks, reply)
    return push_results(tasks, reply)


def forget_delivered(commands: Commands, task_ids: Iterable[str], now: float | None = None) -> Steps[int]:
    """Say that the rows of these tasks are gone; how many were known."""
    ids, known = list(task_ids), 0
    for first in range(0, len(ids), MAX_BATCH):
        part = ids[first : first + MAX_BATCH]
        known += yield commands.call("forget_delivered", [to_us(REMEMBERED_AFTER), len(part), *part], now)
    return known


def event_counts(commands: Commands) -> Steps[dict[str, EventCount]]:
    """What is known of each event that ever asked for a task of this queue."""
    (fields,) = yield Read([("HGETALL", commands.keys("events"))])
    found: dict[str, EventCount] = {}
    for field, value in fields.items():
        kind, _, event = field.decode().partition(":")
        count = found.setdefault(event, EventCount())
        if kind == "last":
            count.last = seconds(value)
        elif kind == "error":
            count.error = value.decode(errors="replace")
        else:
            setattr(count, kind, int(value))
    return found
