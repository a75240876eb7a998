"""Looking for tasks of one state by user and name: through a bounded number of records, and saying how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .listing import MAX_PAGE, check_limit
from .models import Task
from .records import TaskState
from .steps import Read, Steps

if TYPE_CHECKING:
    from .commands import Commands

SLICE = 200
MOST_LOOKED_AT = 10_000
FIELDS = (
    *("state", "user", "name", "priority", "created", "due", "expires", "ready", "started", "ended", "worker"),
    *("retries", "max_retries", "deliveries", "run"),
)
"""What is read of a task: neither payload nor result, which may be large."""


@dataclass(frozen=True)
class Found:
    """What matches among the ``looked_at`` records after the cursor; ``cursor`` to go on, None at the end."""

    tasks: tuple[Task, ...]
    looked_at: int
    cursor: str | None


def find(
    commands: Commands,
    state: TaskState | str,
    user_id: str | None,
    name: str | None,
    limit: int,
    look_at: int,
    cursor: str | None,
) -> Steps[Found]:
    check_limit(limit)
    if isinstance(look_at, bool) or not isinstance(look_at, int) or not 1 <= look_at <= MOST_LOOKED_AT:
        raise ValueError(f"look_at must be an integer from 1 to {MOST_LOOKED_AT}, got {look_at!r}")
    key = commands.keys.state(TaskState(state).value)
    index = yield from _start(key, cursor)
    found: list[Task] = []
    looked_at = 0
    is_filtered = user_id is not None or name is not None
    while looked_at < look_at:
        size = (
            min(SLICE, look_at - looked_at) if is_filtered else min(limit - len(found), look_at - looked_at, MAX_PAGE)
        )
        (ids,) = yield Read([("ZRANGE", key, index, index + size - 1)])
        names = [task_id.decode() for task_id in ids]
        for task_id, task in zip(names, (yield from _records(commands, names)), strict=True):
            looked_at, index = looked_at + 1, index + 1
            is_one = task is not None and task.state.value == TaskState(state).value
            if task and is_one and user_id in (None, task.user_id) and name in (None, task.name):
                found.append(task)
                if len(found) == limit:
                    return Found(tuple(found), looked_at, f"{index}:{task_id}")
        if len(ids) < size:
            return Found(tuple(found), looked_at, None)
    return Found(tuple(found), looked_at, f"{index}:{names[-1]}")


def _start(key: str, cursor: str | None) -> Steps[int]:
    """The place after the cursor's task; where it was, less its own place, if it has left the registry since."""
    if cursor is None:
        return 0
    index, separator, task_id = cursor.partition(":")
    if not (separator and index.isdecimal() and len(index) < 16):
        raise ValueError(f"cursor must be one that an earlier page returned, got {cursor!r:.100}")
    (rank,) = yield Read([("ZRANK", key, task_id)])
    return max(0, int(index) - 1) if rank is None else int(rank) + 1


def _records(commands: Commands, task_ids: list[str]) -> Steps[list[Task | None]]:
    if not task_ids:
        return []
    reply = yield Read([("HMGET", commands.keys.task(task_id), *FIELDS) for task_id in task_ids])
    return [_task(task_id, values) for task_id, values in zip(task_ids, reply, strict=True)]


def _task(task_id: str, values: list[bytes | None]) -> Task | None:
    record = {field: value for field, value in zip(FIELDS, values, strict=True) if value is not None}
    return Task.from_redis_dict({**record, "id": task_id, "payload": b"null"}) if record else None
