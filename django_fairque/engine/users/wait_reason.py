"""The facts that decide whether and when a task starts, read at one moment. Functions elsewhere draw conclusions from
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_lookup import position_on_shard
from django_fairque.engine.limits.limits import LimitStats, combine_limit_records, parse_limit_id
from django_fairque.engine.model.durations import number, seconds, to_us
from django_fairque.engine.model.lanes import LANES, Lane, class_of, read_lane
from django_fairque.engine.model.pauses import PAUSE_FIELDS, Pause, decode_pause
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.commands import ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import Operation, Read, users_record
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.users.organizations import OrganizationStats, combine_records
from django_fairque.engine.users.users import UserStats, users_stats

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class WaitReason:
    """The facts that decide whether and when a task starts. Moments are Unix times of the engine.

    ``task_id`` and ``state`` are the task's; ``now`` is the moment at which the facts were read. ``is_paused`` is
    whether the queue is paused. ``user`` has the figures of the task's user. ``user_free_at`` is the moment at which
    the rate allows the user another task, None if it allows one now. ``users_before`` is the least number of users
    whose turn in the task's lane is earlier (for a member of an organization: of organizations and members before it),
    None if the user can't be served in that lane now. ``position`` is that of `FairQueue.position`. If the task waits
    at a limit, ``users_before`` and ``position`` are about the users, and the user's tasks, at that limit.
    ``lease_ends_at`` is the end of a running task's lease. ``organization`` is the organization of the user, with the
    figures of the user's shard.
    """

    task_id: str
    state: TaskState
    now: float
    is_paused: bool
    user: UserStats
    user_free_at: float | None
    users_before: int | None
    position: int | None
    lease_ends_at: float | None
    organization: OrganizationStats | None = None
    pause: Pause | None = None
    """The note and the end of the queue's pause; None unless it is paused."""
    lane: Lane = "normal"
    """The task's lane."""
    other_lanes: tuple[Lane, ...] = ()
    """The other lanes in which a task could start now."""
    ahead: float = 0.0
    """The worker time in seconds (or the number of tasks, if the queue is fair by tasks) by which the urgent tasks of
    the user are ahead of its share. For a member of an organization, the larger value of the user and its organization.
    0 for tasks of other lanes."""
    limit: LimitStats | None = None
    """The limit by key at which the task waits, with the figures of the user's shard; None if it waits for its turn only."""
    limit_ahead: float = 0.0
    """For a task that waits at a limit: by how much all tasks of its user are ahead of the user's share, in the unit of
    ``ahead``."""


def read_wait_reason(shards: Shards, task_id: str) -> Operation[WaitReason]:
    """Read why a task waits, in at most five round trips, and one more for a chosen id."""
    commands = yield from shards.of_task(task_id)
    keys = commands.keys
    ((state, user, priority, limit),), ((paused, note, clock, virtual_time, *depths), time) = yield from read_fields(
        [(keys, task_id)],
        ("state", "user", "priority", "waits_at"),
        [("HMGET", keys("stats"), *PAUSE_FIELDS, "clock", "vtime", *_DEPTHS.values()), ("TIME",)],
    )
    if state is None or user is None:
        raise commands.unknown(task_id)
    name, lane = user.decode(), read_lane(priority or b"3")
    in_use = {"normal", *(other for other, depth in zip(_DEPTHS, depths, strict=True) if number(depth))}
    others = [other for other in LANES if other != lane and other in in_use]
    (stats,) = yield from users_stats(commands, [name])
    lease_end, free_at, *sizes_and_turn = yield Read(
        [
            ("ZSCORE", keys.state("started"), task_id),
            ("ZSCORE", keys("throttled"), name),
            *(("ZCARD", keys.lane(other)) for other in others),
            *_turn(commands, stats, lane),
            *(_at_limit(commands, limit.decode(), name, lane, task_id) if limit else []),
        ]
    )
    tag, limit_record, position, users_before = sizes_and_turn[-4:] if limit else (None, {}, None, None)
    tag = users_record(tag).get(b"urgent_tag" if lane == "urgent" else b"tag")
    sizes_and_turn = sizes_and_turn[: -4 if limit else None]
    sizes, found = sizes_and_turn[: len(others)], sizes_and_turn[len(others) :]
    pause = decode_pause({b"paused": paused, b"pause_note": note})
    if free_at is not None and stats.pause is not None and float(free_at) / 1_000_000 == stats.pause.until:
        free_at = None  # the user waits for the end of its pause, not for its rate
    record = {} if stats.organization is None else found.pop()
    organization = None if stats.organization is None else combine_records(stats.organization, [record])
    ranks = found[: len(found) // 2] if lane == "urgent" else found
    turn = None if None in ranks else sum(map(int, ranks))
    virtual_times = [number(virtual_time), number(record.get(b"vtime"))]
    now = max(int(time[0]) + int(time[1]) / 1_000_000, seconds(clock) or 0.0)
    of_organization = record.get(b"urgent_tag" if lane == "urgent" else b"tag")
    tags = [tag] if organization is None else [of_organization, tag]
    return WaitReason(
        task_id=task_id,
        state=TaskState(state.decode()),
        now=now,
        is_paused=pause is not None,
        user=stats,
        user_free_at=None if free_at is None else float(free_at) / 1_000_000,
        users_before=users_before if limit else turn,
        position=position if limit else (yield from position_on_shard(commands, task_id)),
        lease_ends_at=None if lease_end is None else float(lease_end) / 1_000_000,
        organization=organization,
        pause=pause,
        lane=lane,
        other_lanes=tuple(other for other, size in zip(others, sizes, strict=True) if int(size)),
        ahead=_ahead(found[len(ranks) :], virtual_times) if lane == "urgent" else 0.0,
        limit=combine_limit_records(*parse_limit_id(limit), [limit_record], to_us(now)) if limit else None,
        limit_ahead=_ahead(tags, virtual_times),
    )


_DEPTHS: dict[Lane, str] = {lane: f"depth:{class_of(lane, 0)}" for lane in LANES if lane != "normal"}


def _ahead(places: Sequence[bytes | None], virtual_times: Sequence[float]) -> float:
    """Return how far the positions in lane urgent, in microseconds of worker time, are beyond the virtual times."""
    found = [number(place) - time for place, time in zip(places, virtual_times, strict=False) if place is not None]
    return max([0.0, *found]) / 1_000_000


def _at_limit(commands: Commands, limit: str, user: str, lane: Lane, task_id: str) -> list[tuple[Any, ...]]:
    """Return the reads of the user's and the limit's record, and the ranks of the task within its user, and of the user."""
    keys = commands.keys
    return [
        ("GET", keys.user(user)),
        ("HGETALL", keys.limit(limit)),
        ("ZRANK", keys.limit_queue(limit, user), task_id),
        ("ZRANK", keys.limit_users(limit, lane), user),
    ]


def _turn(commands: Commands, user: UserStats, lane: Lane) -> list[tuple[Any, ...]]:
    """Return the reads of the user's rank in a lane; for a member, of its organization's rank, its rank among the members, and
    the organization's record. In lane urgent, the positions are read after the ranks.
    """
    keys = commands.keys
    places: list[tuple[str, str | bytes]] = [(keys.lane(lane), user.user_id)]
    if user.organization is not None:
        entry = ORGANIZATION_PREFIX + user.organization.encode()
        places = [(keys.lane(lane), entry), (keys.lane(lane, user.organization), user.user_id)]
    wanted = ("ZRANK", "ZSCORE") if lane == "urgent" else ("ZRANK",)
    reads = [(command, *place) for command in wanted for place in places]
    return reads if user.organization is None else [*reads, ("HGETALL", keys.organization(user.organization))]
