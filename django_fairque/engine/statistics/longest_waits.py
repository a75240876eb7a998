"""The tasks that have waited longest. Bulk tasks are left out: they are expected to wait until no other task can start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import PartialList, check_limit
from django_fairque.engine.limits.limits import combine_limit_records, parse_limit_id
from django_fairque.engine.model.durations import number
from django_fairque.engine.model.lanes import Lane, read_lane
from django_fairque.engine.model.pauses import decode_pause
from django_fairque.engine.model.priority import SCORE_PER_PRIORITY
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import Operation, Read, read_each, read_sound, read_together, read_users
from django_fairque.engine.scripting.task_fields import read_task_fields

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

MAX_SERVED_USERS = 100
"""The number of users of each lane whose oldest tasks are read if the oldest tasks of the queue are held back."""
CLASSES_BY_LANE: dict[Lane, range] = {"normal": range(1, 6), "urgent": range(7, 8)}
"""The classes in each user's sorted set of tasks; CRITICAL tasks are in a list."""


@dataclass(frozen=True)
class WaitingTask:
    """A task that can start but has not started: its ``task_id`` and ``user_id``, and ``since``, the Unix time at which
    it became ready.
    """

    task_id: str
    user_id: str
    since: float


@dataclass(frozen=True)
class Waits:
    """The longest waits, the longest first: of tasks that could start now, and of tasks that are held back.

    A task is held back while the queue, its user or its organization is paused, while the user or the organization runs
    as many tasks as it may or is out of rate, and while its limit by key is full. Bulk tasks are in neither list.
    """

    could_start: list[WaitingTask]
    held_back: list[WaitingTask]


def longest_waits(shards: Shards, limit: int) -> Operation[PartialList[WaitingTask]]:
    """Return the tasks that could start now and have waited longest, the longest wait first."""
    found = yield from read_together([waits(shard, limit) for shard in shards])
    tasks = [task for part in found for task in part.could_start]
    return PartialList(sorted(tasks, key=lambda task: task.since)[:limit], shards.missing)


def waits(commands: Commands, limit: int) -> Operation[Waits]:
    """Read the first ``limit`` tasks in the registry of queued tasks, and the first ``limit`` tasks that missed their
    SLA.

    If some of these are held back or in lane bulk, the oldest tasks of the users who are served next are read too. So a
    large number of such tasks hides no other task as long as at most `MAX_SERVED_USERS` users can be served.
    """
    check_limit(limit)
    queued = commands.keys.state("queued")
    reads = [
        ("ZRANGE", queued, 0, limit - 1),
        ("ZRANGEBYSCORE", queued, NEVER_MICROSECONDS, "+inf", "LIMIT", 0, limit),
        ("HGET", commands.keys("stats"), "paused"),
    ]
    nearest, oldest, paused = yield Read(reads)
    is_paused = decode_pause({b"paused": paused}) is not None
    found = yield from _read_tasks(commands, [task_id.decode() for task_id in dict.fromkeys([*nearest, *oldest])])
    could_start: list[WaitingTask] = []
    held_back: list[WaitingTask] = []
    at_limits = {task: (lane, limit) for task, lane, limit in found if limit and lane in CLASSES_BY_LANE}
    if at_limits:
        could_start = [] if is_paused else (yield from _find_startable_tasks(commands, at_limits))
        held_back = [task for task in at_limits if task not in could_start]
    for lane in CLASSES_BY_LANE:
        tasks = [task for task, task_lane, limit in found if task_lane == lane and not limit]
        users = {task.user_id for task in tasks}
        served = set() if is_paused else (yield from _find_served_users(commands, lane, users))
        for task in tasks:
            (could_start if task.user_id in served else held_back).append(task)
    if len(could_start) < len(found) and not is_paused:
        heads = yield from _heads(commands, (yield from _next_users(commands)))
        could_start = list({task.task_id: task for task in [*could_start, *heads]}.values())
    return Waits(*(sorted(some, key=lambda task: task.since)[:limit] for some in (could_start, held_back)))


def _read_tasks(commands: Commands, ids: list[str]) -> Operation[list[tuple[WaitingTask, Lane, str]]]:
    """Read these tasks, each with its lane and the limit at which it waits; empty if there is none."""
    records = yield from read_task_fields(commands.keys, ids, "user", "ready", "created", "priority", "waits_at")
    return [
        (
            WaitingTask(task_id, user.decode(), number(ready or created) / 1_000_000),
            read_lane(priority or b"3"),
            (limit or b"").decode(),
        )
        for task_id, (user, ready, created, priority, limit) in zip(ids, records, strict=True)
        if user is not None  # leave out tasks that were deleted after the registry was read
    ]


def _find_startable_tasks(
    commands: Commands, at_limits: Mapping[WaitingTask, tuple[Lane, str]]
) -> Operation[list[WaitingTask]]:
    """Return the tasks whose limit is not full and whose user waits at the limit."""
    keys, limits = commands.keys, sorted({limit for _, limit in at_limits.values()})
    places = [("ZSCORE", keys.limit_users(limit, lane), task.user_id) for task, (lane, limit) in at_limits.items()]
    (clock,), records, found = yield from read_each(
        [[("TIME",)], [("HGETALL", keys.limit(limit)) for limit in limits], places], only_sound=True
    )
    now = int(clock[0]) * 1_000_000 + int(clock[1])
    open_limits = {
        limit
        for limit, record in zip(limits, records, strict=True)
        if combine_limit_records(*parse_limit_id(limit.encode()), [record], now).is_open
    }
    stands = zip(at_limits.items(), found, strict=True)
    return [task for (task, (_, limit)), place in stands if limit in open_limits and place is not None]


def _find_served_users(commands: Commands, lane: Lane, user_ids: set[str]) -> Operation[set[str]]:
    """Return the users in a lane of the shard, and the members in this lane of organizations that are in the shard's
    lane.
    """
    names, keys = sorted(user_ids), commands.keys
    if not names:
        return set()
    (places,) = yield Read([("ZMSCORE", keys.lane(lane), *names)])
    served = {name for name, place in zip(names, places, strict=True) if place is not None}
    others = [name for name in names if name not in served]
    records = yield from read_users([keys.user(name) for name in others])
    members = [
        (name, record[b"group"].decode()) for name, record in zip(others, records, strict=True) if b"group" in record
    ]
    reads = [
        [
            ("ZSCORE", keys.lane(lane), ORGANIZATION_PREFIX + organization.encode()),
            ("ZSCORE", keys.lane(lane, organization), name),
        ]
        for name, organization in members
    ]
    found = yield from read_each(reads, only_sound=True)
    return served | {name for (name, _), places in zip(members, found, strict=True) if None not in places}


def _next_users(commands: Commands) -> Operation[list[tuple[Lane, str]]]:
    """List the users who are served next, at most `MAX_SERVED_USERS` of each lane: users in the lane, and members of
    organizations in the lane.
    """
    keys, last = commands.keys, MAX_SERVED_USERS - 1
    found = yield Read([("ZRANGE", keys.lane(lane), 0, last) for lane in CLASSES_BY_LANE])
    users: list[tuple[Lane, str]] = []
    for lane, entries in zip(CLASSES_BY_LANE, found, strict=True):
        organizations = [entry[1:].decode() for entry in entries if entry.startswith(ORGANIZATION_PREFIX)]
        members = yield from read_sound([("ZRANGE", keys.lane(lane, name), 0, last) for name in organizations])
        names = [entry for entry in entries if not entry.startswith(ORGANIZATION_PREFIX)]
        names += [name for some in members for name in some]
        users += [(lane, name.decode()) for name in names[:MAX_SERVED_USERS]]
    return users


def _heads(commands: Commands, users: Sequence[tuple[Lane, str]]) -> Operation[list[WaitingTask]]:
    """Read the oldest task of each class of these users in these lanes."""
    keys = commands.keys
    reads: list[tuple[Any, ...]] = [("LRANGE", keys.critical(name), 0, 0) for lane, name in users if lane == "normal"]
    for lane, name in users:
        for number_of_class in CLASSES_BY_LANE[lane]:
            band = (f"{number_of_class * SCORE_PER_PRIORITY:.0f}", f"({(number_of_class + 1) * SCORE_PER_PRIORITY:.0f}")
            reads.append(("ZRANGEBYSCORE", keys.normal(name), *band, "LIMIT", 0, 1))
    found = yield from read_sound(reads)
    tasks = yield from _read_tasks(commands, [task_id.decode() for ids in found for task_id in ids])
    return [task for task, _, _ in tasks]
