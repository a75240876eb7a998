"""Report the users that wait, the reasons for their waits, and the users that use the share of other users.

The server keeps the sums of weights and of worker time, so these figures cover all users. Figures of single users are
read for at most `MAX_USERS_EXAMINED` users, or for all users with tasks or settings if there are no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import check_integer, now_us, number
from django_fairque.engine.model.ids import check_ids, split_names
from django_fairque.engine.model.lanes import CLASS_NAMES, Lane, class_of, read_lane
from django_fairque.engine.model.priority import SCORE_PER_PRIORITY, Priority
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, ORGANIZATION_PREFIX, Commands
from django_fairque.engine.scripting.operations import (
    Operation,
    Read,
    parse_scores,
    read_each,
    read_sound,
    read_together,
    users_record,
)
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.statistics.queue_stats import SCORE_EPOCH_SECONDS, busy_last_hour, last_hour
from django_fairque.engine.statistics.wait_history import SampledWait
from django_fairque.engine.users.users import hold_reason

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

MAX_USERS_EXAMINED = 2000
"""The largest number of users whose records are read at once."""
SAMPLED_TASKS = 100
"""If not all users can be examined: the number of random ready tasks, and of the oldest ready tasks, whose users are
examined."""
NOISY_MIN_TASKS = 20
"""The least number of waiting tasks of a noisy user."""
NOISY_TIMES_MEDIAN = 10
"""A noisy user has at least this many times the median number of waiting tasks, over the other users with waiting tasks."""
UNNOTICED_WAIT_SECONDS = 1.0
"""A wait of at most this many seconds never counts as longer than expected."""
CONTENDING_WAIT_SECONDS = 60.0
"""A user that waits for more seconds than this counts in the fairness index although it had no worker time in the last
hour."""
FIRST_RUN_SECONDS = 0.1
"""The expected run time before a task has ended (``FIRST_COST`` in lua/lib/ring.lua)."""
MILLIONTHS = 1e6
SAMPLED_RUNNING = 200
"""The number of random running tasks of a shard from which the run time of all its running tasks is estimated."""

_STAT_FIELDS = split_names("clock paused active active_users mean hour recent:0 recent:1 run:sum finished failed")
_ORGANIZATION_FIELDS = ("weight", "paused", "cap", "run", "active", "counted", "share")
_BULK = class_of("bulk", 0)
_CLASSES_BY_SCORE = tuple(number for number in CLASS_NAMES if number != Priority.CRITICAL)


@dataclass(frozen=True)
class UserFairness:
    """The service of one user with tasks or settings.

    ``user_id`` is the user. ``running`` and ``ready`` are the numbers of its running and ready tasks. ``waiting`` is
    the number of its ready tasks that nothing holds back, without bulk tasks, which are expected to wait until no other
    task can start. ``held_by`` is the reason why its ready tasks can't start (as in `UserStats`), None if they can.
    ``share_if_busy`` is its share, from 0 to 1, if everyone were busy: its weight / the weights of all active users.
    ``other_weights`` is the sum of the weights of the other active users; only those of its organization if it belongs
    to one. ``weight`` is its own weight. ``busy_seconds`` is its worker time in the last hour, also of its running
    tasks until now. ``since`` is when its oldest ready task that is no bulk task became ready, as Unix time, None
    without one; ``wait_seconds`` is the time since then. ``lane_waits`` is that time by lane, in seconds; of lane bulk
    only for users that are given by id. ``least_seconds`` is the time that its ready tasks need at least if the user
    has a ``max_running`` or a rate; 0 without these limits.

    ``expected_wait_seconds`` is the time that the user may have to wait for its turn. In a queue that is fair by time,
    the wait ends when the user's share of the running tasks is more than its worker time of the last hour and one more
    task. In a queue that is fair by tasks, the user's number of tasks is used instead of its worker time.
    """

    user_id: str
    ready: int
    waiting: int
    running: int
    held_by: str | None
    share_if_busy: float
    busy_seconds: float
    since: float | None = None
    wait_seconds: float = 0.0
    expected_wait_seconds: float = 0.0
    other_weights: float = 0.0
    weight: float = 1.0
    lane_waits: Mapping[Lane, float] = field(default_factory=dict)
    least_seconds: float = 0.0

    @property
    def can_start(self) -> int:
        """The number of the user's ready tasks, with bulk tasks; 0 if they are held back."""
        return 0 if self.held_by else self.ready

    @property
    def is_late(self) -> bool:
        """Whether the user waits for a worker for longer than expected."""
        longest = max(UNNOTICED_WAIT_SECONDS, self.expected_wait_seconds)
        return self.waiting > 0 and self.wait_seconds > longest


@dataclass(frozen=True)
class Fairness:
    """The division of a queue's worker time between its users. Times are in seconds.

    ``active_users`` is the number of users with a task that can start or that runs, and ``weights`` is the sum of their
    weights; an organization counts as one user. ``running`` is the number of running tasks. ``busy_seconds`` is the
    worker time of all users in the last hour, also of forgotten users and of running tasks until now; if more than 200
    tasks of a shard run, their time follows from a sample. These figures cover the whole queue.

    ``examined`` are the users that were read, the user with the oldest ready task first. ``users`` is the number of
    users with tasks or settings: if not all of them were examined, the other figures cover only the examined users,
    which were chosen for old tasks, for many tasks, and for having their turn soon.
    """

    active_users: int
    weights: float
    running: int
    busy_seconds: float
    users: int
    examined: list[UserFairness] = field(default_factory=list)
    noisy_users: tuple[str, ...] = ()
    """Users with far more waiting tasks than the median of the other users with waiting tasks; the user with most tasks
    first."""
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; the figures do not include them."""

    @property
    def late_users(self) -> list[UserFairness]:
        """Users that are not noisy and that wait for a worker for longer than expected; the longest wait first."""
        return [user for user in self.examined if user.is_late and user.user_id not in self.noisy_users]

    @property
    def oldest_quiet_wait_seconds(self) -> float:
        """The seconds that the oldest waiting task of any user that is not noisy has waited; 0 if none waits."""
        quiet = (user for user in self.examined if user.waiting and user.user_id not in self.noisy_users)
        return max((user.wait_seconds for user in quiet), default=0.0)

    @property
    def jain_index(self) -> float | None:
        """Jain's index of the worker time of the last hour, divided by the share if everyone were busy.

        The index covers users who wait now and had worker time, or have waited for more than a minute. The index is 1
        if these users are served in proportion to their weights, and 1 / their number if one of them gets everything.
        None for fewer than two users.
        """
        contending = [
            user.busy_seconds / user.share_if_busy
            for user in self.examined
            if user.waiting and (user.busy_seconds or user.wait_seconds > CONTENDING_WAIT_SECONDS)
        ]
        squares = sum(ratio * ratio for ratio in contending)
        if len(contending) < 2 or not squares:
            return None
        return sum(contending) ** 2 / (len(contending) * squares)

    def share_received(self, busy_seconds: float) -> float:
        """Return ``busy_seconds`` seconds of worker time as a part, from 0 to 1, of all worker time in the last hour."""
        return min(1.0, busy_seconds / self.busy_seconds) if self.busy_seconds else 0.0

    def share_if_busy(
        self, weight: float, counted: float, organization: tuple[float, float, float, float] | None
    ) -> float:
        """Return a user's share, from 0 to 1, if everyone were busy.

        ``weight`` is its weight, and ``counted`` the part of ``weights`` from this user: its weight while it is active,
        else 0. ``organization`` has the weight of its organization, the part of ``weights`` from that organization, the
        sum of the weights of its active members, and its guaranteed share; None if the user belongs to none.
        """
        # Records are read a moment after the sums, so the difference may be too small.
        if organization is None:
            return weight / max(weight, self.weights - counted + weight)
        outside, outside_counted, members, guaranteed = organization
        part = weight / max(weight, members - counted + weight)
        return part * max(guaranteed, outside / max(outside, self.weights - outside_counted + outside))


@dataclass(frozen=True)
class _ShardReading:
    """The data read from one shard: counters, and the records of users, before the sums of all shards are known."""

    now: float
    weights: float
    active_users: int
    mean: float
    busy_seconds: float
    running: int
    known: int
    users: int
    records: dict[str, Mapping[bytes, bytes]]
    organizations: dict[str, Mapping[bytes, bytes]]
    is_paused: bool
    is_fair_by_tasks: bool
    oldest: dict[str, dict[Lane, float]]
    """When the oldest ready task of each user and lane became ready, as Unix time."""

    def since(self, user_id: str) -> float | None:
        """Return the moment at which the user's oldest ready task that is no bulk task became ready; None without such
        a task.
        """
        return min((at for lane, at in self.oldest[user_id].items() if lane != "bulk"), default=None)


def fairness(shards: Shards, limit: int, user_ids: Sequence[str]) -> Operation[Fairness]:
    """Return how the workers are shared; ``user_ids`` are examined in addition to ``limit`` users."""
    check_integer(limit, "limit", 1, MAX_USERS_EXAMINED)
    check_ids(user_ids, "user ids")
    present = tuple(shards)
    names: dict[int, list[str]] = {}
    for name in dict.fromkeys(user_ids):
        names.setdefault(shards.get_shard(name).keys.shard, []).append(name)
    sampled = min(SAMPLED_TASKS, -(-limit // 4))  # at most this many tasks of each of the three kinds
    part, sample = (-(-count // max(1, len(present))) for count in (limit, sampled))
    found = yield from read_together(
        [_read_shard(shard, part, sample, names.get(shard.keys.shard, [])) for shard in present]
    )
    whole = Fairness(
        active_users=sum(reading.active_users for reading in found),
        weights=sum(reading.weights for reading in found),
        running=sum(reading.running for reading in found),
        busy_seconds=sum(reading.busy_seconds for reading in found),
        users=sum(reading.users for reading in found),
        missing_shards=shards.missing,
    )
    examined = [_figures(whole, reading, user, record) for reading in found for user, record in reading.records.items()]
    examined.sort(key=lambda user: (-user.wait_seconds, user.since is None, user.user_id))
    return replace(whole, examined=examined, noisy_users=_noisy(examined, sum(reading.known for reading in found)))


def _read_shard(commands: Commands, limit: int, sample: int, user_ids: Sequence[str]) -> Operation[_ShardReading]:
    keys = commands.keys
    users = keys("users")
    time, stats, running, sampled, known, busy, first = yield Read(
        [
            ("TIME",),
            ("HMGET", keys("stats"), *_STAT_FIELDS),
            ("ZCARD", keys.state("started")),
            ("ZRANDMEMBER", keys.state("started"), SAMPLED_RUNNING),
            ("ZCARD", users),
            ("ZCOUNT", users, NEVER_MICROSECONDS, "+inf"),
            ("ZRANGEBYSCORE", users, NEVER_MICROSECONDS, "+inf", "LIMIT", 0, limit),
        ]
    )
    counters = _record(_STAT_FIELDS, stats)
    now = max(int(time[0]) + int(time[1]) / 1_000_000, number(counters.get(b"clock")) / 1_000_000)
    names = [name.decode() for name in first]
    if int(busy) > len(names):
        names = [*(yield from _candidates(commands, limit, sample)), *names]
    names = list(dict.fromkeys([*user_ids, *list(dict.fromkeys(names))[:limit]]))
    by_tasks = commands.config.fair_by == "tasks"
    leases = [("HMGET", keys.task(task_id.decode()), "started", "companion") for task_id in sampled]
    texts, started = yield from read_each([[("GET", keys.user(name)) for name in names], leases], only_sound=True)
    records: dict[str, Mapping[bytes, bytes]] = {
        name: users_record(text) for name, text in zip(names, texts, strict=True)
    }
    organizations = list(dict.fromkeys(record[b"group"].decode() for record in records.values() if b"group" in record))
    replies = yield from read_sound(
        [("HMGET", keys.organization(name), *_ORGANIZATION_FIELDS) for name in organizations]
    )
    return _ShardReading(
        now=now,
        weights=number(counters.get(b"active")) / MILLIONTHS,
        active_users=int(number(counters.get(b"active_users"))),
        mean=_mean_run_seconds(counters),
        busy_seconds=busy_last_hour(counters, now_us(now)) + int(running) * _mean_seconds_since(started, now),
        running=int(running),
        known=int(known),
        users=int(busy),
        records=records,
        organizations={
            name: _record(_ORGANIZATION_FIELDS, reply) for name, reply in zip(organizations, replies, strict=True)
        },
        is_paused=number(counters.get(b"paused")) != 0,
        is_fair_by_tasks=by_tasks,
        oldest=(yield from _oldest(commands, records, user_ids)),
    )


def _record(fields: Sequence[str], values: Sequence[bytes | None]) -> Mapping[bytes, bytes]:
    return {name.encode(): value for name, value in zip(fields, values, strict=True) if value is not None}


def _mean_seconds_since(started: Sequence[Sequence[bytes | None]], now: float) -> float:
    """Return the mean time since the starts of some running tasks, at most an hour each. A task that shares a call with
    another task counts as 0.
    """
    ages = (
        0.0 if companion or moment is None else min(3600.0, max(0.0, now - number(moment) / 1_000_000))
        for moment, companion in started
    )
    return sum(ages) / max(1, len(started))


def _mean_run_seconds(counters: Mapping[bytes, bytes]) -> float:
    """Return the mean run time. Without a recent mean, which a queue that is fair by tasks does not keep, use the mean
    since the first task.
    """
    ended = number(counters.get(b"finished")) + number(counters.get(b"failed"))
    mean = number(counters.get(b"mean")) or number(counters.get(b"run:sum")) / max(1.0, ended)
    return mean / 1_000_000 or FIRST_RUN_SECONDS


def _candidates(commands: Commands, limit: int, sample: int) -> Operation[list[str]]:
    """Choose users to examine if not all can be: owners of old tasks, owners of many tasks, and users whose turn is next."""
    keys = commands.keys
    queued = keys.state("queued")
    oldest, overdue, drawn, ring = yield Read(
        [
            ("ZRANGE", queued, 0, sample - 1),
            ("ZRANGEBYSCORE", queued, NEVER_MICROSECONDS, "+inf", "LIMIT", 0, sample),
            ("ZRANDMEMBER", queued, sample),
            ("ZRANGE", keys("ring"), 0, limit - 1),
        ]
    )
    tasks = list(dict.fromkeys([*overdue, *oldest, *drawn]))
    owners = yield from read_task_fields(keys, [task_id.decode() for task_id in tasks], "user")
    names = [owner.decode() for (owner,) in owners if owner is not None]
    organizations = [entry.removeprefix(ORGANIZATION_PREFIX) for entry in ring if entry.startswith(ORGANIZATION_PREFIX)]
    most = max(1, limit // max(1, len(organizations)))
    members = yield from read_sound([("ZRANGE", keys.members(name.decode()), 0, most - 1) for name in organizations])
    return [
        *names,
        *(entry.decode() for entry in ring if not entry.startswith(ORGANIZATION_PREFIX)),
        *(name.decode() for some in members for name in some),
    ]


def _oldest(
    commands: Commands, records: Mapping[str, Mapping[bytes, bytes]], with_bulk: Collection[str]
) -> Operation[dict[str, dict[Lane, float]]]:
    """Return when the oldest ready task of each user and lane became ready. Lane bulk is included only for the users
    ``with_bulk``.
    """
    keys = commands.keys
    reads: list[tuple[Any, ...]] = []
    owners: list[tuple[str, Lane]] = []
    critical: list[str] = []
    for name, record in records.items():
        if number(record.get(b"ready:6")) > 0:
            critical.append(name)
        for class_number in _CLASSES_BY_SCORE:
            if number(record.get(b"ready:%d" % class_number)) > 0 and (class_number != _BULK or name in with_bulk):
                low, high = (f"{(class_number + more) * SCORE_PER_PRIORITY:.0f}" for more in (0, 1))
                reads.append(("ZRANGEBYSCORE", keys.normal(name), low, f"({high}", "WITHSCORES", "LIMIT", 0, 1))
                owners.append((name, read_lane(str(class_number))))
    heads = [("LRANGE", keys.critical(name), 0, 0) for name in critical]
    replies = yield from read_sound([*heads, *reads])
    oldest: dict[str, dict[Lane, float]] = {name: {} for name in records}

    def note(name: str, lane: Lane, moment: float) -> None:
        oldest[name][lane] = min(moment, oldest[name].get(lane, moment))

    for owner, reply in zip(owners, replies[len(critical) :], strict=True):
        for _task, score in parse_scores(reply):
            note(*owner, score % SCORE_PER_PRIORITY / 1_000_000 + SCORE_EPOCH_SECONDS)
    firsts = [(name, ids[0].decode()) for name, ids in zip(critical, replies, strict=False) if ids]
    found = yield from read_sound([("HMGET", keys.task(task_id), "ready", "created") for _, task_id in firsts])
    for (name, _), (ready, created) in zip(firsts, found, strict=True):
        if (ready or created) is not None:
            note(name, "normal", number(ready or created) / 1_000_000)
    return oldest


def longest_user_waits(commands: Commands, limit: int, now: float | None) -> Operation[list[SampledWait]]:
    """Return the users of one shard with ready tasks that nothing holds back, the longest wait first. At most ``limit``
    users are examined.
    """
    reading = yield from _read_shard(commands, limit, -(-limit // 4), [])
    moment = reading.now if now is None else now
    found = []
    for user, record in reading.records.items():
        ready, since = _ready(record), reading.since(user)
        if since is not None and ready and _get_hold_reason(reading, record) is None:
            found.append(SampledWait(user, max(0.0, moment - since), ready))
    return sorted(found, key=lambda wait: (-wait.seconds, wait.user_id))


def _organization(shard: _ShardReading, record: Mapping[bytes, bytes]) -> Mapping[bytes, bytes] | None:
    """Return the record of a user's organization; empty if it is gone, None if the user belongs to none."""
    return shard.organizations.get(record[b"group"].decode(), {}) if b"group" in record else None


def _get_hold_reason(shard: _ShardReading, record: Mapping[bytes, bytes]) -> str | None:
    return hold_reason(record, _organization(shard, record), is_queue_paused=shard.is_paused)


def _ready(record: Mapping[bytes, bytes]) -> int:
    return sum(int(number(record.get(b"ready:%d" % class_number))) for class_number in CLASS_NAMES)


def _figures(whole: Fairness, shard: _ShardReading, user_id: str, record: Mapping[bytes, bytes]) -> UserFairness:
    organization, held_by, ready = _organization(shard, record), _get_hold_reason(shard, record), _ready(record)
    counted_weight = number(record.get(b"counted")) / MILLIONTHS
    weights = whole.weights if organization is None else number(organization.get(b"active")) / MILLIONTHS
    share = whole.share_if_busy(
        number(record.get(b"weight")) or 1.0,
        counted_weight,
        None
        if organization is None
        else (
            number(organization.get(b"weight")) or 1.0,
            number(organization.get(b"counted")) / MILLIONTHS,
            number(organization.get(b"active")) / MILLIONTHS,
            number(organization.get(b"share")),
        ),
    )
    busy = busy_last_hour(record, now_us(shard.now))
    running = int(number(record.get(b"run")))
    mean = number(record.get(b"mean")) / 1_000_000 or shard.mean
    cap = number(record.get(b"cap"))
    # the user's work of the last hour, plus its next task; if the queue is fair by tasks, each task counts with the
    # mean run time
    if shard.is_fair_by_tasks:
        started = last_hour(record, now_us(shard.now)).wait.count
        counted = (max(0, started - running) + 1) * shard.mean
    else:
        counted = busy + mean
    since = shard.since(user_id)
    return UserFairness(
        user_id=user_id,
        ready=ready,
        waiting=0 if held_by else ready - int(number(record.get(b"ready:%d" % _BULK))),
        running=running,
        held_by=held_by,
        share_if_busy=share,
        busy_seconds=busy,
        since=since,
        wait_seconds=0.0 if since is None else max(0.0, shard.now - since),
        # After this time the user's share of the running tasks is more than its work.
        expected_wait_seconds=counted / (share * whole.running) if whole.running else 0.0,
        other_weights=max(0.0, weights - counted_weight),
        weight=number(record.get(b"weight")) or 1.0,
        lane_waits={lane: max(0.0, shard.now - at) for lane, at in shard.oldest[user_id].items()},
        least_seconds=max(ready * mean / cap if cap else 0.0, ready * number(record.get(b"gap")) / 1_000_000),
    )


def _noisy(examined: Sequence[UserFairness], known: int) -> tuple[str, ...]:
    """Find noisy users, if more than one user has a record (``known``). A user with few waiting tasks is not noisy."""
    counts = sorted(user.waiting for user in examined if user.waiting)
    # leave out the largest number: a user is compared with the median of the other users
    usual = median(counts[:-1] or [0])
    least = max(NOISY_MIN_TASKS, NOISY_TIMES_MEDIAN * usual)
    found = [user for user in examined if user.waiting >= least] if known > 1 else []
    return tuple(user.user_id for user in sorted(found, key=lambda user: -user.waiting))
