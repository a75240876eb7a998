"""Pages of tasks and users, queue sizes, and workers. These reads change nothing and never scan the key space."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar, overload

from django_fairque.engine.inspection.task_lookup import read_tasks
from django_fairque.engine.model.durations import check_integer, number
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import MAX_ID_BYTES, check_encodable, check_id, check_ids, natural_order
from django_fairque.engine.model.lanes import CLASS_NAMES, by_class
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import Operation, Read, parse_scores, read_users

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")
MAX_PAGE_SIZE = 1000


@dataclass(frozen=True)
class ResultPage(Generic[T]):
    """A page of ``items``, which can be iterated and indexed, and the ``cursor`` for the next page; None at the end.

    A page may have fewer items than requested, or none, although more follow, because a filter left some out. Only the
    cursor shows whether more follow.
    """

    items: list[T]
    cursor: str | None
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; their items are left out."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        return self.items[index]


class PartialList(list[T]):
    """The items of the shards that can be reached. Items on the ``missing_shards``, which can't be reached now, are
    left out.

    The package makes these lists; ``items`` are the items, none by default.
    """

    def __init__(self, items: Iterable[T] = (), missing_shards: tuple[int, ...] = ()) -> None:
        super().__init__(items)
        self.missing_shards = missing_shards


@dataclass(frozen=True)
class Sizes:
    """The numbers of a user's tasks. ``critical`` and ``normal`` are the numbers of ready tasks of the class critical
    and of all other classes; ``by_priority`` has the number for each class. ``scheduled`` tasks wait for their time,
    ``deferred`` tasks wait for other tasks, and ``running`` tasks run.
    """

    critical: int
    normal: int
    by_priority: dict[str, int]
    scheduled: int
    deferred: int
    running: int
    limited: int = 0
    """The number of tasks that wait at a full limit."""

    @property
    def ready(self) -> int:
        """The number of tasks that could start."""
        return self.critical + self.normal

    @property
    def total(self) -> int:
        """The number of tasks that have not ended."""
        return self.ready + self.limited + self.scheduled + self.deferred + self.running


SIGNING_KEYS_FIELD = "signing_keys"
"""The field of a worker's record with the fingerprints of its keys, separated by commas."""
UNKNOWN_TASKS_FIELD = "unknown_tasks"
"""The field of a worker's record with a JSON list of the names of tasks that it can't run; absent if there are none."""


@dataclass(frozen=True)
class WorkerRecord:
    """The record of a ``worker``: ``info`` is its description in the last heartbeat, ``leases`` the number of leases
    that it holds, and ``seen_at`` the time of the heartbeat (Unix time of the server).

    ``command`` is the last command sent to it: drain, work or stop.
    """

    worker: str
    seen_at: float
    leases: int
    info: dict[str, str]
    command: str = ""

    @property
    def keys(self) -> set[str]:
        """Fingerprints of the keys with which the worker checks signatures. Empty if it checks no signatures, or if its
        release does not report keys.
        """
        return set(filter(None, self.info.get(SIGNING_KEYS_FIELD, "").split(",")))

    @property
    def unknown_tasks(self) -> list[str]:
        """Names of tasks that the worker got lately and can't run, because no function is registered for them in its
        process.
        """
        try:
            names = json.loads(self.info.get(UNKNOWN_TASKS_FIELD, "[]"))
        except ValueError:
            return []
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def tasks(
    shards: Shards, state: TaskState | str | None, user_id: str | None, limit: int, cursor: str | None
) -> Operation[ResultPage[Task]]:
    states = [TaskState.from_name(state)] if state is not None else list(TaskState)

    def read(commands: Commands, size: int, place: str | None) -> Operation[ResultPage[Task]]:
        at, index = parse_cursor(place, len(states))
        while at < len(states):
            (ids,) = yield Read([("ZRANGE", commands.keys.state(states[at].value), index, index + size - 1)])
            found = yield from read_tasks(commands, [task_id.decode() for task_id in ids])
            items = [task for task in found if task and task.state is states[at] and user_id in (None, task.user_id)]
            if len(ids) == size:
                return ResultPage(items, f"{at}:{index + size}")
            at, index = at + 1, 0
            if items or at == len(states):
                return ResultPage(items, f"{at}:0" if at < len(states) else None)
        return ResultPage([], None)

    return (yield from read_page(shards, limit, cursor, read, is_filtered=True))


def user_names(
    shards: Shards, cursor: str | None, limit: int, busy_first: bool, prefix: str = ""
) -> Operation[ResultPage[str]]:
    """Return a page of user ids. With a ``prefix``, only ids that begin with it, in the order of ``busy_first``."""
    if not isinstance(prefix, str):
        raise TaskValidationError(f"prefix must be a text, got {short(prefix)}")
    if (size := check_encodable(prefix, "prefix")) > MAX_ID_BYTES:
        raise TaskValidationError(f"prefix must have at most {MAX_ID_BYTES} bytes, as a user's id; it has {size}")
    start = prefix.encode()

    def read(commands: Commands, size: int, at: str | None) -> Operation[ResultPage[str]]:
        if start:
            return (yield from _users_by_prefix(commands, start, size, at))
        if busy_first:
            return (yield from _busy_users_first(commands, size, at))
        _, index = parse_cursor(at, 1)
        (names,) = yield Read([("ZRANGE", commands.keys("users"), index, index + size - 1)])
        return ResultPage([name.decode() for name in names], f"0:{index + size}" if len(names) == size else None)

    return (yield from read_page(shards, limit, cursor, read, is_filtered=bool(start)))


RANKS_PER_READ = 64
"""The number of members of a sorted set that one round trip reads in the search for a name."""
IDLE_USERS_READ = 1000
"""The number of idle users, the latest first, in which one page searches for a prefix. The server does not sort idle
users by name."""


def _users_by_prefix(commands: Commands, prefix: bytes, limit: int, cursor: str | None) -> Operation[ResultPage[str]]:
    """List users with tasks or settings by name, then idle users, the most recently busy one first."""
    at, index = parse_cursor(cursor, 2)
    key = commands.keys("users")
    idle, total = map(int, (yield Read([("ZCOUNT", key, "-inf", f"({NEVER_MICROSECONDS}"), ("ZCARD", key)])))
    if at == 0:
        first = (yield from find_rank(key, prefix, idle, total)) + index
        (names,) = yield Read([("ZRANGE", key, first, first + limit - 1)])
        items = [name.decode() for name in names if name.startswith(prefix)]
        if len(items) == limit:
            return ResultPage(items, f"0:{index + limit}")
        return ResultPage(items, "1:0" if idle else None)
    last = idle - 1 - index
    (names,) = yield Read([("ZRANGE", key, max(0, last - IDLE_USERS_READ + 1), max(0, last))])
    items = []
    for place, name in enumerate(reversed(names if last >= 0 else []), start=1):
        if name.startswith(prefix):
            items.append(name.decode())
            if len(items) == limit:
                return ResultPage(items, f"1:{index + place}" if index + place < idle else None)
    following = index + len(names)
    return ResultPage(items, f"1:{following}" if following < idle else None)


def find_rank(key: str, prefix: bytes, low: int, high: int) -> Operation[int]:
    """Return the rank of the first name from ``low`` on that does not sort before ``prefix``; ``high`` if there is none."""
    while low < high:
        step = -(-(high - low) // RANKS_PER_READ)
        ranks = range(low, high, step)
        found = yield Read([("ZRANGE", key, rank, rank) for rank in ranks])
        before = [rank for rank, names in zip(ranks, found, strict=True) if names and names[0] < prefix]
        if not before:
            return low
        low, high = before[-1] + 1, min(high, before[-1] + step)
    return low


def busy_users(shards: Shards, limit: int) -> Operation[PartialList[str]]:
    """Return the names of busy users, and of idle users if there is room, equally many from each shard."""
    check_limit(limit)
    names: list[str] = []
    for shard in shards:
        names += (yield from _busy_users_first(shard, -(-limit // len(shards)), None)).items
    return PartialList(names[:limit], shards.missing)


def _busy_users_first(commands: Commands, limit: int, cursor: str | None) -> Operation[ResultPage[str]]:
    """List users with tasks or settings by name, then idle users, the most recently busy one first."""
    _, index = parse_cursor(cursor, 1)
    key = commands.keys("users")
    idle, total = map(int, (yield Read([("ZCOUNT", key, "-inf", f"({NEVER_MICROSECONDS}"), ("ZCARD", key)])))
    end = min(index + limit, total)
    busy = max(0, min(end, total - idle) - index)  # the busy users on this page
    left = total - max(index + busy, total - idle)  # the idle users that no earlier page had
    reads: list[tuple[Any, ...]] = []
    if busy:
        reads.append(("ZRANGE", key, idle + index, idle + index + busy - 1))
    if (some := end - index - busy) > 0:
        reads.append(("ZREVRANGE", key, total - left, total - left + some - 1))
    if not reads:
        return ResultPage([], None)
    names = [name for reply in (yield Read(reads)) for name in reply]
    return ResultPage([name.decode() for name in names], f"0:{end}" if end < total else None)


def queue_sizes(shards: Shards, user_ids: Sequence[str]) -> Operation[dict[str, Sizes]]:
    names, keys = check_ids(user_ids, "user ids"), shards.route_names().keys
    records = yield from read_users([keys.user(name) for name in names])
    return {name: sizes(record) for name, record in zip(names, records, strict=True)}


def sizes(record: Mapping[bytes, bytes]) -> Sizes:
    """Return the sizes in the record of a user."""

    def whole(field: str) -> int:
        return int(number(record.get(field.encode())))

    ready = by_class({f"ready:{number}": whole(f"ready:{number}") for number in CLASS_NAMES}, "ready")
    return Sizes(
        critical=ready[Priority.CRITICAL.name],
        normal=sum(ready.values()) - ready[Priority.CRITICAL.name],
        by_priority=ready,
        scheduled=whole("sched"),
        deferred=whole("deferred"),
        running=whole("run"),
        limited=whole("limited"),
    )


def workers(shards: Shards, worker_id: str) -> Operation[PartialList[WorkerRecord]]:
    """Return each worker once, or only the worker with this id, with its leases on all shards. Workers are sorted by
    id; numbers in ids are compared by value.
    """
    found: dict[str, WorkerRecord] = {}
    names = [] if worker_id == "" else [check_id(worker_id, "worker_id")]
    for shard in shards:
        records = read_worker_records(shard, names) if names else workers_of_shard(shard)
        for record in (yield from records):
            other = found.get(record.worker)
            newest = record if other is None or record.seen_at >= other.seen_at else other
            found[record.worker] = replace(newest, leases=record.leases + (0 if other is None else other.leases))
    return PartialList(sorted(found.values(), key=lambda record: natural_order(record.worker)), shards.missing)


def workers_of_shard(commands: Commands, now: int | None = None) -> Operation[list[WorkerRecord]]:
    """Return the workers that live at ``now`` (µs), by default by the server's clock."""
    reads: list[tuple[Any, ...]] = [("ZRANGE", commands.keys("workers"), 0, MAX_PAGE_SIZE - 1, "WITHSCORES")]
    ends, *clock = yield Read([*reads, ("TIME",)] if now is None else reads)
    moment = int(clock[0][0]) * 1_000_000 if now is None else now
    # The record of a lost worker is kept for a day. While no worker sweeps, its entry also stays in this registry of
    # workers.
    names = [worker.decode() for worker, end in parse_scores(ends) if end > moment]
    return (yield from read_worker_records(commands, names))


def read_worker_records(commands: Commands, names: Sequence[str]) -> Operation[list[WorkerRecord]]:
    records = (yield Read([("HGETALL", commands.keys.worker(name)) for name in names])) if names else []
    return [_worker(name, record) for name, record in zip(names, records, strict=True) if record]


def _worker(name: str, record: Mapping[bytes, bytes]) -> WorkerRecord:
    info: dict[str, Any] = {key.decode(): value.decode(errors="replace") for key, value in record.items()}
    for field in ("id", "commanded"):
        info.pop(field, None)
    seen, leases, command = int(info.pop("seen", 0)), int(info.pop("leases", 0)), info.pop("command", "")
    return WorkerRecord(name, seen / 1_000_000, leases, info, command)


def check_limit(limit: int) -> None:
    check_integer(limit, "limit", 1, MAX_PAGE_SIZE)


def parse_cursor(cursor: str | None, states: int) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    at, separator, index = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    is_whole = bool(separator) and all(part.isdecimal() and len(part) < 16 for part in (at, index))
    if not (is_whole and int(at) < states):
        raise cursor_error(cursor)
    return int(at), int(index)


def score_cursor(score: float, name: str) -> str:
    """Return the cursor of `rank_after` for a member of a sorted set."""
    return f"{score:.0f}:{name}"


def rank_after(key: str, cursor: str | None) -> Operation[int]:
    """Return the rank of the first member of a sorted set after the cursor, even if the cursor's member was removed.

    A member whose score has changed counts as removed. Names with the same score are in the order of their bytes.
    """
    if cursor is None:
        return 0
    score, separator, name = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (separator and name and score.isascii() and score.isdecimal() and len(score) < 20):
        raise cursor_error(cursor)
    rank, present, low, high = yield Read(
        [
            ("ZRANK", key, name),
            ("ZSCORE", key, name),
            ("ZCOUNT", key, "-inf", f"({score}"),
            ("ZCOUNT", key, "-inf", score),
        ]
    )
    if present is not None and f"{float(present):.0f}" == score:
        return int(rank) + 1
    return (yield from find_rank(key, name.encode(), int(low), int(high)))


def cursor_error(cursor: object) -> TaskValidationError:
    """Return the error for a cursor that no page returned."""
    return TaskValidationError(f"cursor must be one that an earlier page returned, got {short(cursor, 300)}")


def read_page(
    shards: Shards,
    limit: int,
    cursor: str | None,
    read: Callable[[Commands, int, str | None], Operation[ResultPage[T]]],
    *,
    is_filtered: bool,
    is_enough: Callable[[], bool] = lambda: False,
) -> Operation[ResultPage[T]]:
    """Return a page of items, from the cursor on, over one shard after the other.

    ``read`` returns a page of one shard for that shard's cursor. With ``is_filtered``, a page ends with the first shard
    that has a cursor, because that shard has examined as many records as one page may. ``is_enough`` returns whether no
    other shard must be read.
    """
    check_limit(limit)
    at, inner = _parse_shard_cursor(shards, cursor)
    items: list[T] = []
    for index in range(at, len(shards)):
        if not shards.is_present(shards.all[index]):
            inner = None
            continue
        page = yield from read(shards.all[index], limit - len(items), inner)
        items += page.items
        if page.cursor is not None and (is_filtered or len(items) >= limit):
            return ResultPage(items, _shard_cursor(shards, index, page.cursor), shards.missing)
        if len(items) >= limit or is_enough():
            return ResultPage(items, _shard_cursor(shards, index + 1, None), shards.missing)
        inner = None
    return ResultPage(items, None, shards.missing)


def _parse_shard_cursor(shards: Shards, cursor: str | None) -> tuple[int, str | None]:
    """Return the number of the shard to continue with, and that shard's own cursor."""
    if cursor is None or len(shards) == 1:
        return 0, cursor
    number, separator, inner = cursor.partition("!") if isinstance(cursor, str) else ("", "", "")
    if not (separator and number.isascii() and number.isdecimal() and len(number) < 5 and int(number) < len(shards)):
        raise cursor_error(cursor)
    return int(number), inner or None


def _shard_cursor(shards: Shards, number: int, inner: str | None) -> str | None:
    """Return the cursor that `_parse_shard_cursor` reads; None after the last shard."""
    if len(shards) == 1:
        return inner
    return f"{number}!{inner or ''}" if number < len(shards) else None
