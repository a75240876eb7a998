"""Handing tasks over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import seconds, to_us
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.model.signature import SignedFields, is_signing, sign_payload
from django_fairque.engine.model.task import check_tasks
from django_fairque.engine.pushing.batching import check_graph, dependency_args, push_apart, raise_graph_refusal
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.scripting.operations import Operation, Read, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.push_template import PushTemplate
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation


@dataclass(frozen=True)
class OtherShards:
    """What of a graph lies on other shards: where its tasks depend on, and ``parts``, messages that carry the rest there.

    ``is_part``: these tasks are such a part, which was accepted with the whole.
    """

    shards: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)
    is_part: bool = False


NO_OTHER_SHARDS = OtherShards()

TASKS_SORTED_BY_USER = 2000
"""Tasks among which those of a user are sent together: some 50 ms of pushing."""


def push(commands: Commands, task: Task, now: float | None = None) -> Operation[PushResult]:
    if task.depends_on or task.run_id:
        return (yield from push_graph(commands, [task], "", now))[0]
    results = yield from _push_slice(commands, [task], now)
    return all_accepted(commands, results)[0]


def push_batch(commands: Commands, tasks: Iterable[Task], now: float | None = None) -> Operation[list[PushResult]]:
    waiting = check_tasks(tasks)
    if any(task.depends_on or task.run_id for task in waiting):
        results = yield from push_apart(
            waiting,
            lambda some: push_batch(commands, some, now),
            lambda some, run_id: push_graph(commands, some, run_id, now),
        )
        return all_accepted(commands, results)
    size = commands.config.pipeline_batch_size
    order = range(len(waiting)) if len(waiting) <= size else _user_by_user(waiting)
    parts = [order[first : first + size] for first in range(0, len(waiting), size)]
    if len(parts) > 1:
        check_limits(commands.config, waiting)  # before any of them is sent
    found: dict[int, PushResult] = {}
    slices = ([waiting[index] for index in part] for part in parts)
    calls = (commands.call("push", push_args(commands, some), now, reply=new_nonce()) for some in slices)
    unheard = iter(parts)

    def on_reply(reply: Sequence[Any]) -> None:
        part = next(unheard)
        found.update(zip(part, push_results([waiting[index] for index in part], reply), strict=True))

    yield Stream(calls, on_reply)
    return all_accepted(commands, [found[index] for index in range(len(waiting))])


def _user_by_user(tasks: Sequence[Task]) -> Sequence[int]:
    """The tasks' indexes, those of one user next to each other: a call reads and writes each of its users once, which takes
    as long as a task. Among `TASKS_SORTED_BY_USER` tasks at a time, and users with few before those with many: nobody waits
    until all of another's are there. Where tasks may be the same as others, the first or the last of them counts, so they
    stay as they came.
    """
    if any(task.has_chosen_id or task.unique_key for task in tasks):
        return range(len(tasks))
    order: list[int] = []
    for first in range(0, len(tasks), TASKS_SORTED_BY_USER):
        users: dict[str, list[int]] = {}
        for index, task in enumerate(tasks[first : first + TASKS_SORTED_BY_USER], first):
            users.setdefault(task.user_id, []).append(index)
        for indexes in sorted(users.values(), key=len):
            order += indexes
    return order


def push_graph(
    commands: Commands,
    tasks: Sequence[Task],
    run_id: str,
    now: float | None = None,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    """Push tasks that depend on each other as a whole or not at all; ``run_id`` keeps them together ("" for none)."""
    check_graph(tasks)
    run = run_id or (tasks[0].run_id if tasks else "")
    return (yield from _push_slice(commands, tasks, now, run, is_graph=True, elsewhere=elsewhere))


def _push_slice(
    commands: Commands,
    tasks: Sequence[Task],
    now: float | None,
    run_id: str = "",
    *,
    is_graph: bool = False,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    if not tasks:
        return []
    args = push_args(commands, tasks, run_id, is_graph=is_graph, other_shards=elsewhere)
    reply = yield commands.call("push", args, now, reply=new_nonce())
    if is_graph:
        raise_graph_refusal(commands, tasks, reply)
    return push_results(tasks, reply)


def push_results(tasks: Sequence[Task], reply: Sequence[Any]) -> list[PushResult]:
    """What ``push.lua`` answers of each task, unless it refused a graph."""
    others = {int(reply[i]): reply[i + 1].decode() for i in range(2, len(reply), 2)}
    words = {0x31: "accepted", 0x32: "duplicate", 0x33: "backlog_full", 0x34: "id_conflict"}
    return [
        PushResult(others.get(index, task.task_id), words[code])
        for index, (task, code) in enumerate(zip(tasks, reply[1], strict=True), 1)
    ]


def check_limits(config: QueueConfig, tasks: Iterable[Task]) -> None:
    """Raise `TaskValidationError` for a task beyond what this queue is configured to take; of its payload it is a
    `TaskSerializationError`, as everywhere.
    """
    limit, most_retries = config.max_payload_bytes, config.max_retry_attempts
    for task in tasks:
        size = len(task.payload_bytes)
        if size > limit:
            raise TaskSerializationError(
                f"the payload of task {task.task_id!r} takes {size:,} bytes, "
                f"the limit (max_payload_bytes) is {limit:,}; store the data and pass a reference to it"
            )
        if task.max_retries > most_retries:
            raise TaskValidationError(
                f"max_retries of task {task.task_id!r} is {task.max_retries}, "
                f"the limit (max_retry_attempts) is {most_retries}"
            )


def push_args(
    commands: Commands,
    tasks: Sequence[Task],
    run_id: str = "",
    *,
    is_graph: bool = False,
    other_shards: OtherShards = NO_OTHER_SHARDS,
) -> list[Any]:
    """The arguments of ``push.lua`` behind the options.

    Raises:
        TaskValidationError: a task is beyond what this queue is configured to take.
    """
    check_limits(commands.config, tasks)
    forms: dict[PushTemplate, int] = {}
    args: list[Any] = []
    for task in tasks:
        form = forms.setdefault(task.push_template, len(forms) + 1)
        args += (task.task_id, task.user_id, task.payload_bytes + _signature_of(commands, task, run_id), form)
    parts = other_shards.parts
    is_kept = bool(parts) or any(form.is_idempotent for form in forms)
    tail = [*(dependency_args(tasks, other_shards.shards) if is_graph else []), *_trace_args(tasks)]
    if parts:
        tail = [*(tail if any(task.traceparent for task in tasks) else [*tail, 0]), len(parts)]
        tail += [each for part in parts.items() for each in part]
    mode = 2 if other_shards.is_part else int(is_graph)
    return [int(is_kept), run_id, mode, len(tasks), len(forms), *args, *(form.packed() for form in forms), *tail]


def _signature_of(commands: Commands, task: Task, run_id: str) -> bytes:
    if task.signature is not None:
        return task.signature
    if not is_signing():
        return b""
    known = ("", "") if task.debounce is not None else (task.task_id, run_id)
    return sign_payload(
        SignedFields(commands.config.prefix, commands.name, task.name, task.user_id, task.payload_bytes, *known),
    )


def _trace_args(tasks: Sequence[Task]) -> list[Any]:
    """Nothing when no task belongs to a trace."""
    traced = [(index, task.trace.stored()) for index, task in enumerate(tasks, 1) if task.traceparent]
    return [len(traced), *(part for each in traced for part in each)] if traced else []


def all_accepted(commands: Commands, results: list[PushResult]) -> list[PushResult]:
    """These results; `PushRefusedError` with all of them if some tasks were refused."""
    if all(result.is_known for result in results):
        return results
    raise push_refused(commands.name, results)


DELIVERY_RECORD_SECONDS = 30 * 86_400.0
"""Seconds for which it is known that a row was delivered, should nobody come to remove it: beyond any outage."""
REMOVED_ROW_RECORD_SECONDS = 600.0
"""Seconds for which it is known once the row is gone: longer than anybody holds on to a row that was read."""
MAX_EVENT_ERROR_CHARACTERS = 500


def deliver(
    commands: Commands,
    tasks: Sequence[Task],
    counts: Mapping[str, EventCount],
    *,
    run_id: str = "",
    is_graph: bool = False,
    from_outbox: bool = False,
    now: float | None = None,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    """At most `MAX_CALL_ITEMS` tasks, or a graph, and at most as many counts, in one call."""
    if is_graph:
        check_graph(tasks)
    elif max(len(tasks), len(counts)) > MAX_CALL_ITEMS:
        raise TaskValidationError(f"at most {MAX_CALL_ITEMS} tasks and events are delivered in one call")
    args: list[Any] = [to_us(DELIVERY_RECORD_SECONDS) if from_outbox else 0, len(counts)]
    for event, count in counts.items():
        args += [event, count.fired, count.coalesced, count.failed, count.error[:MAX_EVENT_ERROR_CHARACTERS]]
    _kept, *rest = push_args(commands, tasks, run_id, is_graph=is_graph, other_shards=elsewhere)
    reply = yield commands.call("deliver", [*args, 1, *rest], now, reply=new_nonce())
    if is_graph:
        raise_graph_refusal(commands, tasks, reply)
    return push_results(tasks, reply)


def forget_delivered(commands: Commands, task_ids: Iterable[str], now: float | None = None) -> Operation[int]:
    """Say that the rows of these tasks are gone; how many were known."""
    ids, known = list(task_ids), 0
    for first in range(0, len(ids), MAX_CALL_ITEMS):
        part = ids[first : first + MAX_CALL_ITEMS]
        known += yield commands.call("forget_delivered", [to_us(REMOVED_ROW_RECORD_SECONDS), len(part), *part], now)
    return known


def event_counts(commands: Commands) -> Operation[dict[str, EventCount]]:
    """What is known of each event that ever added a task to this queue."""
    (fields,) = yield Read([("HGETALL", commands.keys("events"))])
    found: dict[str, EventCount] = {}
    for name, value in fields.items():
        kind, _, event = name.decode().partition(":")
        count = found.setdefault(event, EventCount())
        if kind == "last":
            count.last = seconds(value)
        elif kind == "error":
            count.error = value.decode(errors="replace")
        else:
            setattr(count, kind, int(value))
    return found
