"""Estimates of when a queued task starts, from the fluid model of weighted fair sharing and a bounded number of reads.

A task starts when the tag that its user will have then is the lowest one. The tags of the other users show how many of their
tasks start before it. The mean run times and the number of running tasks show how long these earlier tasks take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import number
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.lanes import Lane, read_lane
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.scripting.commands import ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import Operation, parse_scores, read_sound, users_record
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.statistics.backlog import LONGEST_ESTIMATE_SECONDS
from django_fairque.engine.statistics.queue_stats import busy_last_hour, last_hour
from django_fairque.engine.users.users import HOLD_REASONS, hold_reason

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

USERS_READ = 100
"""The number of users of a ring whose records are read, the next users first. The others count with the sum of their
weights.
"""
LOW_SHARE, LOW_SECONDS = 0.7, 2.0
"""The lower end of an estimate is this share of the expected time, minus these seconds."""
HIGH_FACTOR, HIGH_SECONDS = 3.0, 5.0
"""The upper end of an estimate is this many times the lower end, plus these seconds."""
ENOUGH_TASKS = 5
"""If a user has fewer ended tasks in the last hour, its mean run time is the one by which the ring charges its next
task.
"""
ROUNDS = 40
"""The number of repetitions of the calculation of the time that users at their own limits can use. The result then no
longer changes much.
"""
AHEAD_US, TASK_COST, FIRST_COST_US, LEAST_COST_US = 10e6, 1e6, 1e5, 100.0
"""``AHEAD``, ``TASK_COST``, ``FIRST_COST`` and ``LEAST_COST`` in lua/lib/ring.lua."""

NO_ESTIMATE = {
    **{name: text for name, text in HOLD_REASONS.items() if name.endswith("_paused")},
    "not_queued": "the task does not wait for a worker",
    "limit_closed": "its limit is closed",
    "no_worker": "no worker is running",
    "nothing_runs": "no task is running yet",
    "too_far": "the task would start in more than 30 days",
}
"""The reasons for which there is no estimate."""

_STATS = split_names("clock vtime active mean running run:sum finished failed paused")
_CLASSES: Mapping[Lane, Sequence[int]] = {"urgent": (7,), "normal": range(1, 7), "bulk": (0,)}
_FIELDS = (*_STATS, *(f"depth:{name}" for names in _CLASSES.values() for name in names))


@dataclass(frozen=True)
class StartEstimate:
    """The time until a task starts: between ``low`` and ``high`` seconds from now, both None if there is no estimate.

    ``high`` is 3 × ``low`` + 5 seconds. ``reason`` is None, or without an estimate the reason: "not_queued" (it is scheduled,
    depends on others, runs or has ended), "queue_paused", "user_paused", "organization_paused", "limit_closed", "no_worker",
    "nothing_runs" (the workers have just begun) or "too_far" (more than 30 days).
    """

    low: float | None
    high: float | None
    reason: str | None = None

    @property
    def middle(self) -> float | None:
        """The middle of the range on a logarithmic scale, in seconds; None without an estimate."""
        return None if self.low is None or self.high is None else sqrt(self.low * self.high)

    def text(self) -> str:
        """Return a text in English: ``starts in about 40 s``, or without an estimate the reason."""
        if self.middle is None:
            return f"no estimate: {NO_ESTIMATE[self.reason or 'not_queued']}"
        return f"starts in about {_write_time(self.middle)}" if self.middle else "starts in a few seconds"


def _write_time(seconds: float) -> str:
    for length, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{round(seconds, -1) if seconds >= 20 else max(1.0, seconds):.0f} s"


@dataclass(frozen=True)
class _Shard:
    """A shard's counters, for the estimate of a task of one lane. Times are in microseconds."""

    now: float
    counters: Mapping[bytes, bytes]
    lane: Lane
    is_fair_by_tasks: bool
    least_share: float
    """The share of the worker time that the lane gets at least."""

    def value(self, name: str) -> float:
        return number(self.counters.get(name.encode()))

    @property
    def slots(self) -> float:
        return max(1.0, self.value("running"))

    @property
    def mean(self) -> float:
        ended = max(1.0, self.value("finished") + self.value("failed"))
        return self.value("mean") or self.value("run:sum") / ended or FIRST_COST_US

    def count_ready(self, *lanes: Lane) -> float:
        return sum(max(0.0, self.value(f"depth:{name}")) for lane in lanes for name in _CLASSES[lane])

    def work(self, tags: float, weights: float) -> float:
        """Return the worker time after which the tags of users with these weights, who always have tasks, have risen by
        ``tags``.
        """
        return tags * weights * (self.mean / TASK_COST if self.is_fair_by_tasks else 1.0)


class _Entry:
    """A user or an organization that waits in a ring (lua/lib/ring.lua), for the estimate. Worker times are in
    microseconds.
    """

    def __init__(self, record: Mapping[bytes, bytes], shard: _Shard) -> None:
        def value(field: bytes, default: float = 0.0) -> float:
            return number(record.get(field), default)

        self.name = b""
        self.record, self.organization = record, (record.get(b"group") or b"").decode()
        ended = last_hour(record, int(shard.now)).wait.count - value(b"run")
        recent = busy_last_hour(record, int(shard.now)) * 1e6 / ended if ended >= ENOUGH_TASKS else 0.0
        cost = value(b"mean") or shard.mean
        self.mean = recent or cost
        self.weight, self.counted = value(b"weight") or 1.0, value(b"counted") / 1e6
        self.tags_per_task = (TASK_COST if shard.is_fair_by_tasks else max(LEAST_COST_US, cost)) / self.weight
        self.tag = value(b"urgent_tag" if shard.lane == "urgent" else b"tag")
        self.is_newcomer = shard.lane == "normal" and value(b"came") > 0
        self.ready = self.count_ready(_CLASSES[shard.lane])
        self.running, self.places, self.gap = value(b"run"), value(b"cap", inf), value(b"gap")
        self.held = max(0.0, value(b"tat") - self.gap * (value(b"burst", 1.0) - 1) - shard.now) if self.gap else 0.0

    def count_ready(self, classes: Iterable[int]) -> float:
        return sum(number(self.record.get(b"ready:%d" % name)) for name in classes)

    def count_tasks_before(self, tag: float, virtual_time: float) -> float:
        """Return how many tasks the user starts before it reaches this tag. Its queue may have fewer tasks."""
        tags = tag - max(self.tag, virtual_time)
        return max(float(self.is_newcomer), ceil(tags / self.tags_per_task - 1e-9))

    def most_work(self, time: float) -> float:
        """Return the worker time that the limits of this user or organization allow in this time."""
        slots = min(self.places, self.mean / self.gap if self.gap else inf)
        return inf if slots == inf else slots * time + self.mean

    def earliest_start(self, before: float) -> float:
        """Return the time after which the limits of this user or organization allow a task that has this number of its
        tasks before it.
        """
        busy = max(0.0, self.running + before + 1 - self.places) * self.mean / self.places
        return max(busy, self.held + before * self.gap)


def read_start_estimate(shards: Shards, task_id: str) -> Operation[StartEstimate]:
    """Read when a task starts. This takes 8 commands in 3 round trips; 10 commands for a task at a limit; 11 commands
    in 5 round trips for a member of an organization.
    """
    commands = yield from shards.of_task(task_id)
    keys, config = commands.keys, commands.config
    ((state, owner, priority, limit),), (stats, time, last_worker) = yield from read_fields(
        [(keys, task_id)],
        ("state", "user", "priority", "waits_at"),
        [("HMGET", keys("stats"), *_FIELDS), ("TIME",), ("ZRANGE", keys("workers"), -1, -1, "WITHSCORES")],
    )
    if state is None or owner is None:
        raise commands.unknown(task_id)
    counters = {name.encode(): value for name, value in zip(_FIELDS, stats, strict=True) if value is not None}
    now = max(int(time[0]) * 1e6 + int(time[1]), number(counters.get(b"clock")))
    if state != b"queued":
        return StartEstimate(None, None, "not_queued")
    if not any(end > now for _, end in parse_scores(last_worker)):
        return StartEstimate(None, None, "no_worker")
    lane = read_lane(priority or b"3")
    least_share = {"urgent": 0.0, "normal": config.lanes.normal, "bulk": config.lanes.bulk}[lane]
    shard = _Shard(now, counters, lane, config.fair_by == "tasks", least_share)
    if limit:
        time, reason = yield from _read_limit_time(commands, shard, owner.decode(), limit.decode(), task_id)
    else:
        time, reason = yield from _read_turn_time(commands, shard, owner.decode(), int(priority or 3), task_id)
    seconds = time / 1e6
    if reason is None and seconds > LONGEST_ESTIMATE_SECONDS:
        reason = "too_far"
    if reason is None and not shard.value("running") and seconds > HIGH_SECONDS:
        reason = "nothing_runs"
    low = max(0.0, seconds * LOW_SHARE - LOW_SECONDS)
    return StartEstimate(None, None, reason) if reason else StartEstimate(low, HIGH_FACTOR * low + HIGH_SECONDS)


_Ring = Sequence[tuple[bytes, float]]
_TimeOrReason = tuple[float, "str | None"]
"""The expected time in microseconds, and the reason why it is not known."""


def _read_turn_time(
    commands: Commands, shard: _Shard, name: str, priority: int, task_id: str
) -> Operation[_TimeOrReason]:
    """Return the time until the turn of a task that waits at no limit."""
    keys = commands.keys
    in_queue = ("LPOS", keys.critical(name)) if priority == Priority.CRITICAL else ("ZRANK", keys.normal(name))
    rank, in_ring = yield from read_sound(
        [(*in_queue, task_id), ("ZRANGE", keys.lane(shard.lane), 0, USERS_READ - 1, "WITHSCORES")]
    )
    if rank is None:
        return 0.0, "not_queued"
    ring = parse_scores(in_ring)
    user, *others = yield from _read_entries(commands, shard, name, ring)
    before = float(rank)
    if priority != Priority.CRITICAL:  # the sorted set has the lowest class first, and no critical tasks
        before -= user.count_ready(low for low in range(priority) if low != Priority.CRITICAL)
        before += user.count_ready(range(priority + 1, 7)) if shard.lane == "normal" else 0
    work, earliest = before * user.mean, user.earliest_start(before)
    if not user.organization:
        return max(earliest, _turn_time(shard, user, before, work, others, ring)), _pause_reason(shard, user)
    record, in_members_ring = yield from read_sound(
        [
            ("HGETALL", keys.organization(user.organization)),
            ("ZRANGE", keys.lane(shard.lane, user.organization), 0, USERS_READ - 1, "WITHSCORES"),
        ]
    )
    organization, virtual_time = _Entry(record, shard), number(record.get(b"vtime"))
    organization.name = user.organization.encode()
    _, *members = yield from _read_entries(commands, shard, name, parse_scores(in_members_ring))
    tag = max(user.tag, virtual_time) + before * user.tags_per_task
    for member in members:
        tasks = min(member.ready, member.count_tasks_before(tag, virtual_time))
        before, work = before + tasks, work + tasks * member.mean
    organization.ready = user.ready + sum(member.ready for member in members)
    others = [other for other in others if not other.organization]
    time = _turn_time(shard, organization, before, work, others, ring)
    return max(earliest, organization.earliest_start(before), time), _pause_reason(shard, user, organization)


def _read_entries(commands: Commands, shard: _Shard, name: str, ring: _Ring) -> Operation[list[_Entry]]:
    """Read the record of the user with this name, and those of the other users in the ring, with one command."""
    others = [entry.decode() for entry, _ in ring if not entry.startswith(ORGANIZATION_PREFIX)]
    names = dict.fromkeys([name, *others])
    (texts,) = yield from read_sound([("MGET", *map(commands.keys.user, names))])
    return [_Entry(users_record(text), shard) for text in texts]


def _pause_reason(shard: _Shard, *entries: _Entry) -> str | None:
    user, organization = (
        None if entry is None else {name: value for name, value in entry.record.items() if name == b"paused"}
        for entry in (*entries, None)[:2]
    )
    return hold_reason(user or {}, organization, is_queue_paused=shard.value("paused") != 0)


def _make_organizations(shard: _Shard, one: _Entry, ring: _Ring, tasks: float) -> list[_Entry]:
    """Return the organizations of the ring except this one, with their positions in the ring. The estimate assumes that
    ``tasks`` queued tasks are divided equally between them.
    """
    own = ORGANIZATION_PREFIX + one.name
    found = [
        _Entry({b"tag": b"%f" % place, b"came": b"1" if place < 0 else b"0"}, shard)
        for entry, place in ring
        if entry.startswith(ORGANIZATION_PREFIX) and entry != own
    ]
    for organization in found:
        organization.ready = tasks / len(found)
    return found


def _turn_time(
    shard: _Shard, one: _Entry, before: float, own_work: float, others: Sequence[_Entry], ring: _Ring
) -> float:
    """Return the time until the turn of a user or organization after ``before`` of its tasks, which take ``own_work``.

    The tasks that will arrive are unknown. So the result is the geometric mean of the time without arrivals, and of the time if
    all users of the ring always have tasks.
    """
    virtual_time, weights = shard.value("vtime"), shard.value("active") / 1e6
    tag = max(one.tag, virtual_time) + (before * TASK_COST if shard.is_fair_by_tasks else own_work) / one.weight
    unread = (
        max(0.0, weights - one.counted - sum(other.counted for other in others)) if len(ring) == USERS_READ else 0.0
    )
    slots_of_held = max(0.0, shard.slots - one.running - sum(other.running for other in others))
    tasks_of_held = max(0.0, shard.count_ready(shard.lane) - one.ready - sum(other.ready for other in others))
    organizations = _make_organizations(shard, one, ring, tasks_of_held)
    others = [*others, *organizations]
    tasks_of_held = 0.0 if organizations else tasks_of_held
    fixed = own_work + shard.work(tag - virtual_time, unread) + shard.mean
    tasks_before = [other.count_tasks_before(tag, virtual_time) for other in others]

    def find_time(counts: Sequence[float]) -> float:
        time = inf
        for _ in range(ROUNDS):
            work = sum(min(n * other.mean, other.most_work(time)) for n, other in zip(counts, others, strict=True))
            work += min(tasks_of_held * shard.mean, slots_of_held * time) if tasks_of_held and slots_of_held else 0.0
            time = (fixed + work) / shard.slots
        return time

    without_arrivals = [min(n, other.ready) for n, other in zip(tasks_before, others, strict=True)]
    time = sqrt(find_time(without_arrivals) * find_time(tasks_before))
    if shard.lane == "urgent":  # a user that is too far ahead of its share waits
        return max(time, shard.work(tag - AHEAD_US - virtual_time, weights) / shard.slots)
    above = shard.count_ready("urgent") + (shard.count_ready("normal") if shard.lane == "bulk" else 0.0)
    return time + min(above * shard.mean / shard.slots, time / shard.least_share if shard.least_share else inf)


def _read_limit_time(
    commands: Commands, shard: _Shard, name: str, limit: str, task_id: str
) -> Operation[_TimeOrReason]:
    """Return the time until a task starts that waits at a limit by key, at which users take turns."""
    keys, lane = commands.keys, shard.lane
    record, text, rank, user_rank, users = yield from read_sound(
        [
            ("HGETALL", keys.limit(limit)),
            ("GET", keys.user(name)),
            ("ZRANK", keys.limit_queue(limit, name), task_id),
            ("ZRANK", keys.limit_users(limit, lane), name),
            ("ZCARD", keys.limit_users(limit, lane)),
        ]
    )

    def value(field: bytes, default: float = 0.0) -> float:
        return number(record.get(field), default)

    user, before = _Entry(users_record(text), shard), float(rank or 0)
    ahead = min(max(0.0, value(b"waiting") - 1), before * int(users) + int(user_rank or 0))
    places, gap = value(b"at_once", inf), value(b"gap")
    busy = max(0.0, ahead + 1 + value(b"running") - places) * shard.mean / places
    rate = value(b"tat") - gap * (value(b"burst", 1.0) - 1) - shard.now + ahead * gap if gap else 0.0
    reason = "limit_closed" if value(b"closed") > shard.now else _pause_reason(shard, user)
    return max(busy, rate, user.earliest_start(before)), reason
