"""Looking for tasks of one state by user, name and worker: through a bounded number of records, and saying how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import ResultPage, cursor_error, read_page
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError, short
from django_fairque.engine.model.task import Task
from django_fairque.engine.scripting.operations import Operation, Read, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.model.records import TaskState
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

RECORDS_PER_READ = 500
MAX_RECORDS_READ = 10_000
LISTED_TASK_FIELDS = (
    *("state", "user", "name", "priority", "created", "due", "expires", "ready", "started", "ended", "worker"),
    *("retries", "max_retries", "max_deliveries", "deliveries", "run"),
)
"""What is read of a task: neither payload nor result, which may be large."""
MATCHED_TASK_FIELDS = ("state", "user", "name", "worker")
"""The fields that a search compares. Reading them takes a fifth of the time of reading `LISTED_TASK_FIELDS` as tasks."""


@dataclass(frozen=True)
class Search:
    """Which tasks are meant. Raises `TaskValidationError` if ``look_at`` is out of range."""

    state: TaskState
    """Their state."""
    user_id: str | None = None
    """Their user; None for all."""
    name: str | None = None
    """Their name; None for all."""
    look_at: int = 1000
    """The largest number of records that are read, from 1 to 10,000."""
    worker: str | None = None
    """The worker that had them last; None for all."""

    def __post_init__(self) -> None:
        check_integer(self.look_at, "look_at", 1, MAX_RECORDS_READ)

    @property
    def is_filtered(self) -> bool:
        return (self.user_id, self.name, self.worker) != (None, None, None)

    def matches(self, state: bytes | None, user: bytes | None, name: bytes | None, worker: bytes | None) -> bool:
        """Whether a task's fields of `MATCHED_TASK_FIELDS` are those of one that is meant."""
        wanted = ((self.user_id, user), (self.name, name), (self.worker, worker))
        is_meant = all(expected is None or (found or b"") == expected.encode() for expected, found in wanted)
        return state == self.state.value.encode() and is_meant


@dataclass(frozen=True)
class SearchResult:
    """The ``tasks`` that match among the ``looked_at`` records after the cursor; ``cursor`` to go on, None at the end."""

    tasks: tuple[Task, ...]
    looked_at: int
    cursor: str | None
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now, and are left out."""


@dataclass(frozen=True)
class MatchingTasks:
    """The ids of all that match (``task_ids``); unless ``is_whole`` only of the first ``look_at`` records."""

    task_ids: list[str]
    is_whole: bool
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now, of which nothing is known."""


def _check_search(search: Search) -> None:
    if not isinstance(search, Search):
        raise TaskValidationError(f"expected a Search, got {short(search)}")


def find(shards: Shards, search: Search, limit: int, cursor: str | None) -> Operation[SearchResult]:
    """A shard after the other, in ``look_at`` records of all of them."""
    _check_search(search)
    looked_at = 0

    def read(commands: Commands, most: int, at: str | None) -> Operation[ResultPage[Task]]:
        nonlocal looked_at
        key = commands.keys.state(search.state.value)
        index = yield from _start(key, at)
        found: list[Task] = []
        while looked_at < search.look_at:
            size = min(RECORDS_PER_READ if search.is_filtered else most - len(found), search.look_at - looked_at)
            (ids,) = yield Read([("ZRANGE", key, index, index + size - 1)])
            names = [task_id.decode() for task_id in ids]
            meant = (yield from _matching_ids(commands, search, names)) if search.is_filtered else names
            records = dict(zip(meant, (yield from _records(commands, meant)), strict=True))
            for task_id in names:
                looked_at, index = looked_at + 1, index + 1
                task = records.get(task_id)
                if task is not None and task.state is search.state:
                    found.append(task)
                    if len(found) == most:
                        return ResultPage(found, f"{index}:{task_id}")
            if len(ids) < size:
                return ResultPage(found, None)
        return ResultPage(found, f"{index}:{names[-1]}")

    page = yield from read_page(
        shards, limit, cursor, read, is_filtered=True, is_enough=lambda: looked_at >= search.look_at
    )
    return SearchResult(tuple(page.items), looked_at, page.cursor, page.missing_shards)


def matching(shards: Shards, search: Search) -> Operation[MatchingTasks]:
    """In each shard's part of ``look_at`` records.

    Of the tasks only the fields of the search are read: none at all if every task of the state matches.
    """
    _check_search(search)
    share = max(1, search.look_at // len(shards))
    found: list[str] = []
    is_whole = not shards.missing
    for shard in shards:
        key, index = shard.keys.state(search.state.value), 0
        while index < share:
            size = min(RECORDS_PER_READ, share - index)
            (ids,) = yield Read([("ZRANGE", key, index, index + size - 1)])
            names = [task_id.decode() for task_id in ids]
            found += (yield from _matching_ids(shard, search, names)) if search.is_filtered else names
            if len(names) < size:
                break
            index += size
        else:
            is_whole = False
    return MatchingTasks(found, is_whole, shards.missing)


def _matching_ids(commands: Commands, search: Search, task_ids: list[str]) -> Operation[list[str]]:
    reply = yield from read_sound(
        [("HMGET", commands.keys.task(task_id), *MATCHED_TASK_FIELDS) for task_id in task_ids]
    )
    return [task_id for task_id, fields in zip(task_ids, reply, strict=True) if search.matches(*fields)]


def _start(key: str, cursor: str | None) -> Operation[int]:
    """The place after the cursor's task; where it was, less its own place, if it has left the registry since."""
    if cursor is None:
        return 0
    index, separator, task_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (separator and index.isdecimal() and len(index) < 16):
        raise cursor_error(cursor)
    (rank,) = yield Read([("ZRANK", key, task_id)])
    return max(0, int(index) - 1) if rank is None else int(rank) + 1


def _records(commands: Commands, task_ids: list[str]) -> Operation[list[Task | None]]:
    reply = yield from read_sound([("HMGET", commands.keys.task(task_id), *LISTED_TASK_FIELDS) for task_id in task_ids])
    return [_task(task_id, values) for task_id, values in zip(task_ids, reply, strict=True)]


def _task(task_id: str, values: list[bytes | None]) -> Task | None:
    record = {field: value for field, value in zip(LISTED_TASK_FIELDS, values, strict=True) if value is not None}
    try:
        return Task.from_redis_dict({**record, "id": task_id, "payload": b"null"}) if record else None
    except TaskSerializationError:  # the page goes on without it; the checker names it
        return None
