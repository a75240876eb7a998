"""Finding tasks by state, user, name and worker in a bounded number of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import ResultPage, check_limit, cursor_error, read_page
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError, short
from django_fairque.engine.model.head import MAX_HEAD_BYTES, head_size, split_head
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.signature import split_signature
from django_fairque.engine.model.task import Task, Undecodable
from django_fairque.engine.scripting.operations import Operation, Read, read_sound, slices
from django_fairque.engine.scripting.task_fields import read_task_fields

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

RECORDS_PER_READ = 500
MATCHED_RECORDS_PER_READ = 2000
"""The number of records in one read of only `MATCHED_TASK_FIELDS`: at most 1 MB, so that 10,000 records take 10 round
trips."""
MAX_RECORDS_READ = 10_000
LISTED_TASK_FIELDS = split_names("""
    state user name priority created due expires ready started ended worker retries max_retries max_deliveries
    deliveries run timeout
""")
"""The fields that are read of a task. Payloads are read only up to a size, results never: they may be large."""
MAX_PAYLOAD_BYTES_READ = 1_000_000
MATCHED_TASK_FIELDS = ("state", "user", "name", "worker")
"""The fields that a search compares. Reading them takes a fifth of the time of reading `LISTED_TASK_FIELDS` as tasks."""


@dataclass(frozen=True)
class Search:
    """The conditions of a search for tasks. Raises `TaskValidationError` if ``look_at`` or ``payload_bytes`` is out of
    range.
    """

    state: TaskState | None
    """The state of the tasks; None for all states, of which the newest records of each state are read."""
    user_id: str | None = None
    """The user of the tasks; None for all users."""
    name: str | None = None
    """The name of the tasks; None for all names."""
    look_at: int = 1000
    """The largest number of records that are read, from 1 to 10,000."""
    worker: str | None = None
    """The worker that had the tasks last; None for all workers."""
    newest_first: bool = False
    """Whether the order is reversed: for ended tasks, the tasks that ended last come first. A queue of several shards
    is read shard by shard."""
    payload_bytes: int = 0
    """The largest payload that is read, in bytes, up to 1,000,000. With 0, the default, payloads are not read. A larger
    payload becomes an `Undecodable` without bytes."""

    def __post_init__(self) -> None:
        check_integer(self.look_at, "look_at", 1, MAX_RECORDS_READ)
        check_integer(self.payload_bytes, "payload_bytes", 0, MAX_PAYLOAD_BYTES_READ)

    @property
    def is_filtered(self) -> bool:
        return (self.user_id, self.name, self.worker) != (None, None, None)

    def matches(self, state: bytes | None, user: bytes | None, name: bytes | None, worker: bytes | None) -> bool:
        """Return whether a task with these values of `MATCHED_TASK_FIELDS` matches the search."""
        wanted = ((self.user_id, user), (self.name, name), (self.worker, worker))
        is_meant = all(expected is None or (found or b"") == expected.encode() for expected, found in wanted)
        return is_meant and (self.state is None or state == self.state.value.encode())


@dataclass(frozen=True)
class SearchResult:
    """The result of a search: the matching ``tasks`` among the ``looked_at`` records that were read, and the ``cursor``
    for the next page; None at the end.
    """

    tasks: tuple[Task, ...]
    looked_at: int
    cursor: str | None
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; their tasks are left out."""


@dataclass(frozen=True)
class MatchingTasks:
    """The ids of all tasks that match (``task_ids``). If not ``is_whole``, only the first ``look_at`` records were
    searched.
    """

    task_ids: list[str]
    is_whole: bool
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now and were not searched."""


def _check_search(search: Search) -> None:
    if not isinstance(search, Search):
        raise TaskValidationError(f"expected a Search, got {short(search)}")


def find(shards: Shards, search: Search, limit: int, cursor: str | None) -> Operation[SearchResult]:
    """Search one shard after the other. At most ``look_at`` records are read in total."""
    _check_search(search)
    state = search.state
    if state is None:
        return (yield from _find_in_all_states(shards, search, limit, cursor))
    looked_at = 0

    def read(commands: Commands, most: int, at: str | None) -> Operation[ResultPage[Task]]:
        nonlocal looked_at
        key, order = commands.keys.state(state.value), "ZREVRANGE" if search.newest_first else "ZRANGE"
        index = yield from _start(key, at, is_reversed=search.newest_first)
        found: list[Task] = []
        while looked_at < search.look_at:
            size = min(
                MATCHED_RECORDS_PER_READ if search.is_filtered else most - len(found), search.look_at - looked_at
            )
            (ids,) = yield Read([(order, key, index, index + size - 1)])
            names = [task_id.decode() for task_id in ids]
            meant = (yield from _matching_ids(commands, search, names)) if search.is_filtered else names
            records = yield from _with_payloads(commands, search, (yield from _records(commands, meant)))
            for task_id in names:
                looked_at, index = looked_at + 1, index + 1
                task = records.get(task_id)
                if task is not None and task.state is state:
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


def find_matching_tasks(shards: Shards, search: Search) -> Operation[MatchingTasks]:
    """Return the ids of the tasks that match, from each shard's part of ``look_at`` records.

    Only the fields that the search compares are read; no fields are read if every task of the state matches.
    """
    _check_search(search)
    if search.state is None:
        raise TaskValidationError("the ids of all that match are read for one state: give Search a state")
    share = max(1, search.look_at // len(shards))
    found: list[str] = []
    is_whole = not shards.missing
    for shard in shards:
        key, index = shard.keys.state(search.state.value), 0
        while index < share:
            size = min(MATCHED_RECORDS_PER_READ, share - index)
            (ids,) = yield Read([("ZRANGE", key, index, index + size - 1)])
            names = [task_id.decode() for task_id in ids]
            found += (yield from _matching_ids(shard, search, names)) if search.is_filtered else names
            if len(names) < size:
                break
            index += size
        else:
            is_whole = False
    return MatchingTasks(found, is_whole, shards.missing)


def _find_in_all_states(shards: Shards, search: Search, limit: int, cursor: str | None) -> Operation[SearchResult]:
    """Search the newest records of each state, in equal parts of ``look_at``. Tasks that changed last come first.

    There is only one page: records of different states have no common order in which a second page could continue.
    """
    check_limit(limit)
    if cursor is not None:
        raise cursor_error(cursor)
    share = max(1, search.look_at // (len(TaskState) * len(shards)))
    if not search.is_filtered:
        share = min(share, limit)
    found: list[tuple[Commands, Task]] = []
    looked_at = 0
    for commands in shards:
        lists = yield Read([("ZREVRANGE", commands.keys.state(state.value), 0, share - 1) for state in TaskState])
        names = [task_id.decode() for ids in lists for task_id in ids]
        looked_at += len(names)
        for some in slices(list(dict.fromkeys(names)), RECORDS_PER_READ):
            meant = (yield from _matching_ids(commands, search, some)) if search.is_filtered else some
            records = yield from _records(commands, meant)
            found += [(commands, task) for task in records.values() if task is not None]
    found.sort(key=lambda pair: _get_change_time(pair[1]), reverse=True)
    tasks: dict[str, Task | None] = {task.task_id: task for _, task in found[:limit]}
    for commands in shards:
        here = {task.task_id: tasks[task.task_id] for shard, task in found[:limit] if shard is commands}
        tasks.update((yield from _with_payloads(commands, search, here)))
    return SearchResult(tuple(task for task in tasks.values() if task), looked_at, None, shards.missing)


def _get_change_time(task: Task) -> float:
    return task.ended_at or task.started_at or task.ready_at or task.created_at


def _matching_ids(commands: Commands, search: Search, task_ids: Sequence[str]) -> Operation[list[str]]:
    reply = yield from read_task_fields(commands.keys, task_ids, *MATCHED_TASK_FIELDS)
    return [task_id for task_id, fields in zip(task_ids, reply, strict=True) if search.matches(*fields)]


def _start(key: str, cursor: str | None, *, is_reversed: bool) -> Operation[int]:
    """Return the index at which the next page begins: after the cursor's task, or at its former index if the task was
    removed.
    """
    if cursor is None:
        return 0
    index, separator, task_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (separator and index.isdecimal() and len(index) < 16):
        raise cursor_error(cursor)
    rank, size = yield Read([("ZRANK", key, task_id), ("ZCARD", key)])
    if rank is None:
        return max(0, int(index) - 1)
    return int(size) - int(rank) if is_reversed else int(rank) + 1


def _records(commands: Commands, task_ids: Sequence[str]) -> Operation[dict[str, Task | None]]:
    """Read tasks by id; None if a task is unknown or its record is damaged."""
    reply = yield from read_task_fields(commands.keys, task_ids, *LISTED_TASK_FIELDS)
    return {task_id: _task(task_id, values) for task_id, values in zip(task_ids, reply, strict=True)}


def _with_payloads(
    commands: Commands, search: Search, tasks: dict[str, Task | None]
) -> Operation[dict[str, Task | None]]:
    """Add the payloads to the tasks, if the search requests payloads."""
    known = [task for task in tasks.values() if task is not None]
    if not search.payload_bytes or not known:
        return tasks
    keys = commands.keys
    stored = [keys.payload(task.task_id) for task in known]
    found = yield from read_sound(
        [("STRLEN", key) for key in stored] + [("GETRANGE", key, 0, MAX_HEAD_BYTES - 1) for key in stored]
    )
    sizes = [int(size) - head_size(text) for size, text in zip(found, found[len(known) :], strict=False)]
    small = [task.task_id for task, size in zip(known, sizes, strict=True) if size <= search.payload_bytes]
    texts = yield from read_sound([("GET", keys.payload(task_id)) for task_id in small])
    payloads = dict(zip(small, texts, strict=True))
    made = {
        task.task_id: _with_payload(task, payloads.get(task.task_id), size)
        for task, size in zip(known, sizes, strict=True)
    }
    return {**tasks, **made}


def _with_payload(task: Task, text: bytes | None, size: int) -> Task:
    payload: Any = Undecodable(b"", f"{size:,} bytes are not read here")
    if text is not None:
        _, raw = split_head(text)
        try:
            payload = json_payload.loads(split_signature(raw)[0])
        except TaskSerializationError as error:
            payload = Undecodable(raw, str(error))
    return task.model_copy(update={"payload": payload})


def _task(task_id: str, values: list[bytes | None]) -> Task | None:
    record = {field: value for field, value in zip(LISTED_TASK_FIELDS, values, strict=True) if value is not None}
    try:
        return Task.from_redis_dict({**record, "id": task_id, "payload": b"null"}) if record else None
    except TaskSerializationError:  # the page leaves out a damaged record, which the checker reports
        return None
