"""The part of an act that moves dead letters to another queue.

A step discards the letters in this queue, and saves their ids in the list of the act. The next step pushes a copy of each to the
other queue. The id of the copy is a digest of the act and the letter, and the other queue keeps the ids of delivered tasks. A
worker that repeats the delivery of a killed worker adds nothing. Later steps repeat a delivery that the other queue refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from django_fairque.engine.dead_letters.dead_letters import DEAD_LETTERS_PER_CALL, MAX_CALL_PAYLOAD_BYTES
from django_fairque.engine.inspection.task_lookup import attempt, read_tasks
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.ids import derive_task_id
from django_fairque.engine.model.signature import MAX_SIGNATURE_BYTES, split_signature
from django_fairque.engine.model.task import Task, Undecodable
from django_fairque.engine.scripting.operations import Evaluate, Operation, Read, read_sound
from django_fairque.engine.scripting.task_fields import read_task_fields

if TYPE_CHECKING:
    from typing_extensions import Self

    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.records import PushResult
    from django_fairque.engine.scripting.commands import Commands

T = TypeVar("T")


class OtherQueue(Protocol):
    """The queue to which tasks are moved, a `FairQueue`."""

    config: QueueConfig
    acts: Any

    def with_retry_timeout(self, seconds: float, /) -> Self: ...

    def deliver(self, tasks: Sequence[Task], /, *, from_outbox: bool, now: float | None) -> list[PushResult]: ...


@dataclass(frozen=True)
class Mover:
    """The means to move dead letters. ``open_queue`` returns the queue with a name; ``is_genuine(task, prefix, name)`` returns
    whether the application signed a task of the queue with this prefix and name.
    """

    open_queue: Callable[[str], OtherQueue]
    is_genuine: Callable[[Task, str, str], bool]


class OtherQueueError(Exception):
    """The queue to which tasks are moved can't be used now."""


def _call(mover: Mover, to: str, act: Callable[[OtherQueue], T]) -> Operation[T]:
    """Return the result of ``act`` for the queue ``to``."""
    try:
        result: T = yield Evaluate(lambda: act(mover.open_queue(to).with_retry_timeout(0.0)), None)
    except FairQueueError as error:
        raise OtherQueueError(str(error)) from error
    return result


def find_movable(shard: Commands, mover: Mover, to: str, task_ids: Sequence[str]) -> Operation[set[str]]:
    """Return the tasks whose payload was not removed, fits into the queue ``to``, and has a valid signature. Moved
    tasks are signed again.
    """
    limit = yield from _call(mover, to, lambda queue: queue.config.max_payload_bytes)
    found, at = set[str](), 0
    while at < len(task_ids):
        tasks = yield from _read_signed(shard, task_ids[at:])
        at += len(tasks)
        for task in tasks:
            is_whole = task and not task.payload_bytes_removed and not isinstance(task.payload, Undecodable)
            is_small = task and len(task.payload_bytes) <= limit
            if task and is_whole and is_small and mover.is_genuine(task, shard.config.prefix, shard.name):
                found.add(task.task_id)
    return found


def deliver(shard: Commands, mover: Mover, to: str, act_id: str, first: int, now: float | None) -> Operation[int]:
    """Push the tasks of the act's list from index ``first`` on, as many as one call takes. Return how many are delivered."""
    (names,) = yield Read([("LRANGE", shard.keys(f"act_tasks:{act_id}"), first, first + DEAD_LETTERS_PER_CALL - 1)])
    ids = [name.decode() for name in names]
    tasks = yield from _read_signed(shard, ids)
    lines = yield from read_sound([("LRANGE", shard.keys.history(task_id), -1, -1) for task_id in ids[: len(tasks)]])
    copies: list[Task | None] = []
    for task, last in zip(tasks, lines, strict=True):
        # The task was changed since if this is false, for example by a push with the same id.
        is_moved = last and (attempt(last[0]).kind, attempt(last[0]).error) == ("moved", f"act {act_id}")
        copies.append(_copy(task, act_id) if task and is_moved else None)
    pushed = [copy for copy in copies if copy]
    results = yield from _call(mover, to, lambda queue: queue.deliver(pushed, from_outbox=True, now=now))
    refused = {result.task_id for result in results if not result.is_known}
    return next((index for index, copy in enumerate(copies) if copy and copy.task_id in refused), len(copies))


def withdraw(shard: Commands, mover: Mover, to: str, act_id: str, most: int, now: float | None) -> Operation[str]:
    """Cancel the first ``most`` tasks of the act's list in the queue ``to``, if they have not begun. Return a digit for each: 1
    if it is canceled there."""
    (names,) = yield Read([("LRANGE", shard.keys(f"act_tasks:{act_id}"), 0, most - 1)])
    ids = [name.decode() for name in names]
    users = [(user or b"").decode() for (user,) in (yield from read_task_fields(shard.keys, ids, "user"))]
    there = [derive_task_id(user, act_id, task_id) for user, task_id in zip(users, ids, strict=True)]
    reason = f"act {act_id} was undone"
    canceled = yield from _call(mover, to, lambda queue: queue.acts.withdraw(there, reason=reason, now=now))
    return "".join("1" if task_id in canceled else "0" for task_id in there)


def _read_signed(shard: Commands, task_ids: Sequence[str]) -> Operation[list[Task | None]]:
    """Read the first tasks, as many as one call takes, with their signatures. None for an unknown task."""
    sizes = yield from read_sound([("STRLEN", shard.keys.payload(task_id)) for task_id in task_ids])
    fit = sum(sum(sizes[: index + 1]) <= MAX_CALL_PAYLOAD_BYTES for index in range(len(sizes)))
    some = task_ids[: max(1, fit)]
    tasks = yield from read_tasks(shard, some)
    reads: list[tuple[Any, ...]] = [
        ("GETRANGE", shard.keys.payload(task_id), -MAX_SIGNATURE_BYTES, -1) for task_id in some
    ]
    ends = yield from read_sound(reads)
    return [task and task.with_signature(split_signature(end)[1]) for task, end in zip(tasks, ends, strict=True)]


def _copy(task: Task, act_id: str) -> Task:
    """Return a new task with the values of a dead letter, except those of its time, its run and its unique key."""
    copy = Task.create(
        *(task.user_id, task.priority, task.payload),
        task_id=derive_task_id(task.user_id, act_id, task.task_id),
        name=task.name,
        lane=task.lane,
        max_retries=task.max_retries,
        max_deliveries=task.max_deliveries or None,
        timeout=task.timeout,
        sla=task.sla,
        limits=task.limits,
        traceparent=task.traceparent,
        tracestate=task.tracestate,
    )
    return copy.set_payload_bytes(task.payload_bytes)
