"""Dead letters: tasks that will not be tried again by themselves. List, look at, requeue, discard, clean up.

An entry's id is ``{task id}~{n}``: the n-th time that this task died. An id of an earlier death is refused, so
that a page that was opened long ago can't requeue a newer letter by mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from . import payload as json_payload
from .commands import MAX_BATCH
from .errors import TaskNotFoundError, TaskValidationError
from .fingerprint import normalised
from .ids import check_id, new_nonce
from .listing import Page, check_limit, parse_cursor
from .lookup import attempt, get_tasks, server_time
from .records import DLQEntry, DLQGroup, DLQGroups, FailureType
from .steps import Read, Steps
from .units import duration, seconds, to_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .commands import Commands

SLICE = 100
MOST_LOOKED_AT = 10_000
KEEP = object()
"""The payload argument of a requeue that leaves the payload as it is (None is a payload)."""


class Filters(TypedDict, total=False):
    """Which entries are meant; what is not given is not asked for. Ages in seconds."""

    failure_type: FailureType | str
    user_id: str
    name: str
    fingerprint: str
    older_than: float
    newer_than: float


@dataclass(frozen=True)
class Filter:
    """Checked `Filters`."""

    failure_type: FailureType | None = None
    user_id: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    older_than: float | None = None
    newer_than: float | None = None

    @classmethod
    def create(cls, filters: Filters) -> Filter:
        known: dict[str, Any] = {key: value for key, value in filters.items() if value is not None}
        for key in known:
            if key not in Filters.__annotations__:
                raise TypeError(f"there is no filter {key!r}; expected one of {', '.join(Filters.__annotations__)}")
        kind = known.get("failure_type")
        if kind is not None:
            try:
                known["failure_type"] = FailureType(kind)
            except ValueError:
                expected = ", ".join(each.value for each in FailureType)
                raise TaskValidationError(f"failure_type must be one of {expected}, got {kind!r:.80}") from None
        for key in ("older_than", "newer_than"):
            if key in known:
                known[key] = duration(known[key], key)
        return cls(**known)

    def matches(self, entry: DLQEntry, now: float) -> bool:
        task, age = entry.original_task, now - entry.moved_at
        return (
            self.failure_type in (None, entry.failure_type)
            and self.user_id in (None, task.user_id)
            and self.name in (None, task.name)
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age < self.newer_than)
            and self.fingerprint in (None, entry.fingerprint)
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


def page(commands: Commands, limit: int, cursor: str | None, only: Filter, now: float | None) -> Steps[Page[DLQEntry]]:
    check_limit(limit)
    _, index = parse_cursor(cursor, 1)
    moment = yield from server_time(now)
    (ids,) = yield Read([("ZRANGE", commands.keys.state("failed"), index, index + limit - 1)])
    found = yield from entries(commands, [task_id.decode() for task_id in ids])
    items = [entry for entry in found if only.matches(entry, moment)]
    return Page(items, f"0:{index + limit}" if len(ids) == limit else None)


def get(commands: Commands, entry_id: str) -> Steps[DLQEntry]:
    task_id, number = _entry_key(entry_id)
    for entry in (yield from entries(commands, [task_id])):
        if entry.entry_id == f"{task_id}~{number}":
            return entry
    raise _gone(commands, entry_id)


def requeue(commands: Commands, entry_id: str, payload: Any, now: float | None) -> Steps[str]:
    moved = yield from requeue_some(commands, [entry_id], payload, now)
    if not moved:
        raise _gone(commands, entry_id)
    return _entry_key(entry_id)[0]


def discard(commands: Commands, entry_id: str, now: float | None) -> Steps[None]:
    if not (yield from discard_some(commands, [entry_id], now)):
        raise _gone(commands, entry_id)


def requeue_some(commands: Commands, entry_ids: Sequence[str], payload: Any, now: float | None) -> Steps[int]:
    """Requeue those of these entries that are (still) there, in slices; returns how many."""
    keys = [_entry_key(entry_id) for entry_id in entry_ids]
    is_new = int(payload is not KEEP)
    body = json_payload.dumps(payload, limit=commands.config.max_payload_bytes) if is_new else b""
    total = 0
    for first in range(0, len(keys), SLICE):
        some = keys[first : first + SLICE]
        args = [len(some), *(value for task_id, number in some for value in (task_id, number, is_new, body))]
        codes = yield commands.call("requeue", args, now, reply=new_nonce())
        total += codes.count(b"1")
    return total


def discard_some(commands: Commands, entry_ids: Sequence[str], now: float | None) -> Steps[int]:
    """Give up those of these entries that are (still) there, in slices; returns how many."""
    keys = [_entry_key(entry_id) for entry_id in entry_ids]
    total = 0
    for first in range(0, len(keys), SLICE):
        some = keys[first : first + SLICE]
        args = [len(some), *(value for key in some for value in key)]
        codes = yield commands.call("discard", args, now, reply=new_nonce())
        total += codes.count(b"1")
    return total


Act = Callable[["Commands", "Sequence[str]", "float | None"], "Steps[int]"]


def requeue_all(commands: Commands, only: Filter, payload: Any, limit: int | None, now: float | None) -> Steps[int]:
    def act(commands: Commands, entry_ids: Sequence[str], now: float | None) -> Steps[int]:
        return (yield from requeue_some(commands, entry_ids, payload, now))

    return (yield from _all_matching(commands, only, act, limit, now))


def discard_all(commands: Commands, only: Filter, limit: int | None, now: float | None) -> Steps[int]:
    return (yield from _all_matching(commands, only, discard_some, limit, now))


def _all_matching(commands: Commands, only: Filter, act: Act, limit: int | None, now: float | None) -> Steps[int]:
    """In slices of 100, oldest first; what dies again meanwhile has a later place and is not met twice."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise TaskValidationError(f"limit must be an integer of at least 1, got {limit!r}")
    total, cursor = 0, None
    (size,) = yield Read([("ZCARD", commands.keys.state("failed"))])
    for _ in range(size // SLICE + 1):
        found = yield from page(commands, SLICE, cursor, only, now)
        items = found.items if limit is None else found.items[: limit - total]
        moved = (yield from act(commands, [entry.entry_id for entry in items], now)) if items else 0
        total += moved
        if found.cursor is None or (limit is not None and total >= limit):
            break
        # What was moved has left the registry: the next page begins that much earlier.
        _, index = parse_cursor(found.cursor, 1)
        cursor = f"0:{index - moved}"
    return total


def cleanup(commands: Commands, older_than: float, now: float | None) -> Steps[int]:
    age = duration(older_than, "older_than")
    moment = yield from server_time(now)
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


def counts(commands: Commands) -> Steps[dict[str, int]]:
    """How many lie there now, by type: kept by the scripts, so this costs one read."""
    kinds = [kind.value for kind in FailureType]
    (found,) = yield Read([("HMGET", commands.keys("stats"), *(f"lying:{kind}" for kind in kinds))])
    return {kind: int(float(number or 0)) for kind, number in zip(kinds, found, strict=True)}


def groups(commands: Commands, look_at: int, only: Filter, now: float | None) -> Steps[DLQGroups]:
    if isinstance(look_at, bool) or not isinstance(look_at, int) or not 1 <= look_at <= MOST_LOOKED_AT:
        raise TaskValidationError(f"look_at must be an integer from 1 to {MOST_LOOKED_AT}, got {look_at!r}")
    found: dict[str, list[DLQEntry]] = {}
    looked, cursor = 0, None
    while looked < look_at:
        slice_ = yield from page(commands, min(SLICE, look_at - looked), cursor, only, now)
        for entry in slice_.items:
            found.setdefault(entry.fingerprint, []).append(entry)
        looked += min(SLICE, look_at - looked)
        cursor = slice_.cursor
        if cursor is None:
            break
    made = [_group(key, members) for key, members in found.items()]
    made.sort(key=lambda group: (-group.count, -group.newest, group.fingerprint))
    return DLQGroups(tuple(made), sum(map(len, found.values())), cursor is None)


def _group(key: str, members: Sequence[DLQEntry]) -> DLQGroup:
    newest = max(members, key=lambda entry: entry.moved_at)
    return DLQGroup(
        *(key, newest.original_task.name, newest.failure_type, normalised(newest.reason), len(members)),
        oldest=min(entry.moved_at for entry in members),
        newest=newest.moved_at,
        example=newest.entry_id,
    )


def _gone(commands: Commands, entry_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(
        f"queue {commands.name!r} has no dead letter {entry_id!r} (any more): it was requeued, discarded or forgotten"
    )
