"""Dead letters: tasks that will not be tried again by themselves. List, look at, requeue, discard, clean up.

An entry's id is ``{task id}~{n}``: the n-th time that this task died. An id of an earlier death is refused, so
that a page that was opened long ago can't requeue a newer letter by mistake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import payload as json_payload
from .commands import MAX_BATCH
from .errors import TaskNotFoundError
from .ids import check_id, new_nonce
from .listing import Page, check_limit, parse_cursor
from .lookup import attempt, get_tasks
from .records import DLQEntry, FailureType
from .steps import AsyncRun, Read, Run, Steps
from .units import duration, seconds, to_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .commands import Commands

SLICE = 100
KEEP = object()
"""The payload argument of a requeue that leaves the payload as it is (None is a payload)."""


class Filter:
    """Which entries are meant; None leaves a property open."""

    def __init__(self, failure_type: FailureType | str | None, user_id: str | None, name: str | None) -> None:
        self.failure_type = None if failure_type is None else FailureType(failure_type)
        self.user_id, self.name = user_id, name

    def matches(self, entry: DLQEntry) -> bool:
        task = entry.original_task
        return (
            self.failure_type in (None, entry.failure_type)
            and self.user_id in (None, task.user_id)
            and self.name in (None, task.name)
        )


def _entry_key(entry_id: str) -> tuple[str, int]:
    task_id, separator, number = check_id(entry_id, "entry_id").rpartition("~")
    if not (separator and task_id and number.isdecimal()):
        raise TaskNotFoundError(f"{entry_id!r} is no dead letter's id; it looks like 'task id~1'")
    return task_id, int(number)


def entries(commands: Commands, task_ids: Sequence[str]) -> Steps[list[DLQEntry]]:
    """The dead letters among these tasks."""
    if not task_ids:
        return []
    keys = commands.keys
    reads: list[tuple[Any, ...]] = [("HMGET", keys.task(i), "failure", "reason", "ended", "died") for i in task_ids]
    reads += [("LRANGE", keys.history(i), 0, -1) for i in task_ids]
    reply = yield Read(reads)
    found = yield from get_tasks(commands, task_ids)
    letters = []
    for task, facts, lines in zip(found, reply[: len(task_ids)], reply[len(task_ids) :], strict=True):
        failure, reason, ended, died = facts
        if task is None or failure is None or task.state.value != "failed":
            continue
        letters.append(
            DLQEntry(
                entry_id=f"{task.task_id}~{int(died or 1)}",
                original_task=task,
                failure_type=FailureType(failure.decode()),
                reason=(reason or b"").decode("utf-8", "replace"),
                moved_at=seconds(ended) or 0.0,
                retry_history=tuple(attempt(line) for line in lines),
            )
        )
    return letters


def page(
    commands: Commands,
    limit: int,
    cursor: str | None,
    only: Filter,
) -> Steps[Page[DLQEntry]]:
    check_limit(limit)
    _, index = parse_cursor(cursor, 1)
    (ids,) = yield Read([("ZRANGE", commands.keys.state("failed"), index, index + limit - 1)])
    found = yield from entries(commands, [task_id.decode() for task_id in ids])
    items = [entry for entry in found if only.matches(entry)]
    return Page(items, f"0:{index + limit}" if len(ids) == limit else None)


def get(commands: Commands, entry_id: str) -> Steps[DLQEntry]:
    task_id, number = _entry_key(entry_id)
    for entry in (yield from entries(commands, [task_id])):
        if entry.entry_id == f"{task_id}~{number}":
            return entry
    raise _gone(commands, entry_id)


def requeue(commands: Commands, entry_id: str, payload: Any, now: float | None) -> Steps[str]:
    task_id, number = _entry_key(entry_id)
    body = b"" if payload is KEEP else json_payload.dumps(payload, limit=commands.config.max_payload_bytes)
    args = [1, task_id, number, int(payload is not KEEP), body]
    codes = yield commands.call("requeue", args, now, reply=new_nonce())
    if codes != b"1":
        raise _gone(commands, entry_id)
    return task_id


def requeue_all(commands: Commands, only: Filter, limit: int | None, now: float | None) -> Steps[int]:
    """In slices of 100, oldest first; what dies again meanwhile has a later place and is not met twice."""
    total, cursor = 0, None
    (size,) = yield Read([("ZCARD", commands.keys.state("failed"))])
    for _ in range(size // SLICE + 1):
        found = yield from page(commands, SLICE, cursor, only)
        items = found.items if limit is None else found.items[: limit - total]
        moved = 0
        if items:
            keys = [_entry_key(entry.entry_id) for entry in items]
            args = [len(items), *(value for task_id, number in keys for value in (task_id, number, 0, b""))]
            codes = yield commands.call("requeue", args, now, reply=new_nonce())
            moved = codes.count(b"1")
        total += moved
        if found.cursor is None or (limit is not None and total >= limit):
            break
        # What was requeued has left the registry: the next page begins that much earlier.
        _, index = parse_cursor(found.cursor, 1)
        cursor = f"0:{index - moved}"
    return total


def discard(commands: Commands, entry_id: str, now: float | None) -> Steps[None]:
    task_id, number = _entry_key(entry_id)
    codes = yield commands.call("discard", [1, task_id, number], now, reply=new_nonce())
    if codes != b"1":
        raise _gone(commands, entry_id)


def cleanup(commands: Commands, older_than: float, now: float | None) -> Steps[int]:
    age = duration(older_than, "older_than")
    moment = now
    if moment is None:
        (clock,) = yield Read([("TIME",)])
        moment = int(clock[0]) + int(clock[1]) / 1_000_000
    # The registry's score is when a letter is forgotten: failed_ttl after it was moved.
    last = to_us(moment - age + commands.config.failed_ttl)
    total = 0
    while True:
        read = ("ZRANGEBYSCORE", commands.keys.state("failed"), "-inf", last, "LIMIT", 0, MAX_BATCH)
        (ids,) = yield Read([read])
        if not ids:
            return total
        removed = yield commands.call("forget", [len(ids), *ids], now)
        total += int(removed)
        if not removed:
            return total


def count(commands: Commands) -> Steps[int]:
    (size,) = yield Read([("ZCARD", commands.keys.state("failed"))])
    return int(size)


def _gone(commands: Commands, entry_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(
        f"queue {commands.name!r} has no dead letter {entry_id!r} (any more): it was requeued, discarded or forgotten"
    )


class DeadLetters:
    """The dead letters of one queue (``queue.dlq``)."""

    def __init__(self, commands: Commands, run: Run) -> None:
        self._commands, self._run = commands, run

    def list(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        failure_type: FailureType | str | None = None,
        user_id: str | None = None,
        name: str | None = None,
    ) -> Page[DLQEntry]:
        """A page of entries, the oldest first; the filters leave out what does not match."""
        return self._run(page(self._commands, limit, cursor, Filter(failure_type, user_id, name)))

    def get(self, entry_id: str) -> DLQEntry:
        """The entry of that id; `TaskNotFoundError` when it was requeued, discarded or forgotten."""
        return self._run(get(self._commands, entry_id))

    def count(self) -> int:
        return self._run(count(self._commands))

    def requeue(self, entry_id: str, payload: Any = KEEP, *, now: float | None = None) -> str:
        """Another chance, with a fresh retry budget and, if given, another payload; returns the task's id."""
        return self._run(requeue(self._commands, entry_id, payload, now))

    def requeue_all(
        self,
        *,
        failure_type: FailureType | str | None = None,
        user_id: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        now: float | None = None,
    ) -> int:
        """Requeue every entry that matches (at most ``limit``), in bounded slices; returns how many."""
        return self._run(requeue_all(self._commands, Filter(failure_type, user_id, name), limit, now))

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Give an entry up: its task becomes CANCELED."""
        self._run(discard(self._commands, entry_id, now))

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget entries that were moved more than ``older_than`` seconds ago; returns how many."""
        return self._run(cleanup(self._commands, older_than, now))


class AsyncDeadLetters:
    """`DeadLetters`, awaited."""

    def __init__(self, commands: Commands, run: AsyncRun) -> None:
        self._commands, self._run = commands, run

    async def list(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        failure_type: FailureType | str | None = None,
        user_id: str | None = None,
        name: str | None = None,
    ) -> Page[DLQEntry]:
        return await self._run(page(self._commands, limit, cursor, Filter(failure_type, user_id, name)))

    async def get(self, entry_id: str) -> DLQEntry:
        return await self._run(get(self._commands, entry_id))

    async def count(self) -> int:
        return await self._run(count(self._commands))

    async def requeue(self, entry_id: str, payload: Any = KEEP, *, now: float | None = None) -> str:
        return await self._run(requeue(self._commands, entry_id, payload, now))

    async def requeue_all(
        self,
        *,
        failure_type: FailureType | str | None = None,
        user_id: str | None = None,
        name: str | None = None,
        limit: int | None = None,
        now: float | None = None,
    ) -> int:
        return await self._run(requeue_all(self._commands, Filter(failure_type, user_id, name), limit, now))

    async def discard(self, entry_id: str, *, now: float | None = None) -> None:
        await self._run(discard(self._commands, entry_id, now))

    async def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        return await self._run(cleanup(self._commands, older_than, now))
