"""Figures of a whole queue, also per minute and per shard; the usage of a user; and the tasks that have waited longest.

A user's record has the current hour by the clock and the previous hour (``lua/lib/recent_usage.lua``). Only the part of
the previous hour that lies in the last sixty minutes counts: at twenty minutes past, two thirds of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import PartialList, check_limit
from django_fairque.engine.model.durations import check_integer, number
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.lanes import CLASS_NAMES, LANES, Lane, by_class, read_lane
from django_fairque.engine.model.options import STARVABLE_PRIORITIES
from django_fairque.engine.model.pauses import Pause, decode_pause
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.scripting.operations import Operation, Read, read_each, read_sound, read_together
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.statistics import longest_waits
from django_fairque.engine.statistics.backlog import Trend, backlog_trend, fill_quiet_minutes, hours, merge
from django_fairque.engine.statistics.deployments import DEPLOYMENTS_KEY, Deployment, parse_deployments
from django_fairque.engine.statistics.health import attendance, attendance_reads
from django_fairque.engine.transport import cluster as clusters

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of ``count`` durations, in seconds: ``p50``, ``p95`` and ``p99``. Each is right to 9 %. All are 0 if
    there were no durations.
    """

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class Distribution:
    """All durations since the queue's first task: the number of durations in each bucket (``buckets``), and their sum
    in seconds (``sum_seconds``).

    Bucket ``b`` contains durations from 2^(b/4) to 2^((b+1)/4) microseconds.
    """

    buckets: dict[int, int] = field(default_factory=dict)
    sum_seconds: float = 0.0


@dataclass
class Histograms:
    """The histograms of one minute, or the sums of several minutes."""

    waits: dict[int, Counter[int]] = field(default_factory=dict)
    """By priority: the histogram of waits."""
    runs: Counter[int] = field(default_factory=Counter)
    resolutions: Counter[int] = field(default_factory=Counter)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[bytes, bytes]]) -> Histograms:
        """Return the histograms in the records of some minutes."""
        found = cls()
        for name, value in (item for record in records for item in record.items()):
            kind, *rest = name.split(b":")
            if kind == b"wait":
                found.waits.setdefault(int(rest[0]), Counter())[int(rest[1])] += int(value)
            elif kind == b"run":
                found.runs[int(rest[0])] += int(value)
            elif kind == b"resolve":
                found.resolutions[int(rest[0])] += int(value)
        return found

    @property
    def wait(self) -> Percentiles:
        """Percentiles of the waits of all priorities together."""
        return percentiles(sum(self.waits.values(), Counter()))

    @property
    def run(self) -> Percentiles:
        return percentiles(self.runs)

    @property
    def wait_by_priority(self) -> dict[str, Percentiles]:
        return {CLASS_NAMES[number]: percentiles(self.waits[number]) for number in sorted(self.waits)}

    @property
    def wait_by_lane(self) -> dict[Lane, Percentiles]:
        lanes: dict[Lane, Counter[int]] = {lane: Counter() for lane in LANES}
        for number_of_class, waits in self.waits.items():
            lanes[read_lane(str(number_of_class))].update(waits)
        return {lane: percentiles(waits) for lane, waits in lanes.items()}


def count_tasks(records: Sequence[Mapping[bytes, bytes]]) -> dict[str, int]:
    """Return the numbers of tasks in the records of some minutes, by the names that `Span` uses."""
    counted = ("pushed", "finished", "failed", "dead", "violated", "promoted")
    return {name: sum(int(record.get(name.encode(), 0)) for record in records) for name in counted}


def add_up_records(records: Sequence[Mapping[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Add up the records of several shards. Counts are added; the oldest wait is the longest of all."""
    if len(records) == 1:
        return records[0]
    total: Counter[bytes] = Counter()
    for record in records:
        total.update({name: int(value) for name, value in record.items() if name != b"oldest"})
    oldest = [int(record[b"oldest"]) for record in records if b"oldest" in record]
    if oldest:
        total[b"oldest"] = max(oldest)
    return {name: b"%d" % value for name, value in total.items()}


def distribution(counters: Mapping[str, int], kind: str) -> Distribution:
    """Return the distribution of a kind (wait or run) among a queue's counters."""
    found = {name.partition(":")[2]: value for name, value in counters.items() if name.startswith(f"{kind}:")}
    total = found.pop("sum", 0) / 1_000_000
    return Distribution({int(bucket): found[bucket] for bucket in sorted(found, key=int)}, total)


def bucket_middle(bucket: int) -> float:
    """Return the geometric mean of a bucket, in seconds."""
    return float(2 ** ((bucket + 0.5) / 4) / 1_000_000)


def percentiles(histogram: Mapping[int, float], middle: Callable[[int], float] = bucket_middle) -> Percentiles:
    """Return the percentiles of the durations in these buckets; the numbers may be fractions. A total of less than half
    a duration counts as none.
    """
    total = sum(histogram.values())
    if round(total) == 0:
        return Percentiles()
    buckets = sorted(histogram)

    def at(share: float) -> float:
        seen = accumulate(histogram[bucket] for bucket in buckets)
        index = next(index for index, number in enumerate(seen) if number >= share * total)
        return middle(buckets[index])

    return Percentiles(round(total), at(0.5), at(0.95), at(0.99))


KEPT_MINUTES = 1440
"""The number of minutes whose records are kept by default (``stats_minutes_ttl`` is a little longer)."""
MAX_ACTIVITY_MINUTES = 7 * KEPT_MINUTES
"""The largest number of minutes of an activity, because the records of hours are kept for seven days."""


@dataclass(frozen=True)
class Span:
    """The activity from ``begin`` (Unix time) on, for ``seconds``. The latest span has not ended.

    These are numbers of tasks: ``pushed``, ``finished``, ``failed`` (attempts), ``dead`` (new dead letters),
    ``violated`` (started after their SLA), ``promoted`` (moved to a higher priority). ``wait`` and ``run`` are percentiles of the
    attempts that ended in the span: of the time that they waited for their start, and of their run times.
    """

    begin: int
    seconds: int
    pushed: int
    finished: int
    failed: int
    dead: int
    violated: int
    promoted: int
    wait: Percentiles
    run: Percentiles
    ready: int | None = None
    """The largest number of ready tasks in the samples of this span; None without a sample. Workers take a sample each
    minute. While no worker runs, each push takes a sample, and a minute in which nothing happens keeps the number of
    the minute before. The latest span may have no sample."""
    oldest_wait: float | None = None
    """The longest wait of a task that could start, in seconds, in the samples of workers; None without such a sample.
    """
    mean_run: float | None = None
    """The average run time of the span's attempts in seconds. Only spans of an hour or more in an activity that is
    longer than a day have it, because ``wait`` and ``run`` are unknown there."""


@dataclass(frozen=True)
class Activity:
    """The ``spans``, the oldest first, and the percentiles of all of them together in seconds: ``wait`` and ``run`` of
    waits and run times, ``wait_by_priority`` and ``wait_by_lane`` of waits by priority and by lane. Urgent and bulk tasks
    are in ``wait_by_priority`` as ``"URGENT"`` and ``"BULK"``.
    """

    spans: list[Span]
    wait: Percentiles
    run: Percentiles
    wait_by_priority: dict[str, Percentiles] = field(default_factory=dict)
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; the figures do not include them."""
    wait_by_lane: dict[Lane, Percentiles] = field(default_factory=dict)


def activity(queue: Shards, minutes: int, per_span: int) -> Operation[Activity]:
    """Return the activity on the shards of ``queue`` in the last ``minutes`` (1 to 10080, seven days), in spans of
    ``per_span`` minutes.

    More than 1440 minutes are read from records of hours: ``per_span`` must be a multiple of 60 then.

    Raises `TaskValidationError` unless ``minutes`` is in that range and a multiple of ``per_span``.
    """
    are_whole = isinstance(minutes, int) and isinstance(per_span, int)
    are_hours = are_whole and KEPT_MINUTES < minutes <= MAX_ACTIVITY_MINUTES and per_span % 60 == 0
    if not (are_whole and 1 <= per_span <= minutes and (minutes <= KEPT_MINUTES or are_hours)) or minutes % per_span:
        raise TaskValidationError(
            f"minutes must be from 1 to {KEPT_MINUTES} (or to {MAX_ACTIVITY_MINUTES} if per_span is a multiple of 60) and a "
            f"multiple of per_span, got minutes={short(minutes)}, per_span={short(per_span)}"
        )
    if are_hours:
        return (yield from _activity_of_hours(queue, minutes // 60, per_span // 60))
    shards = tuple(queue)
    (clock,) = yield Read([("TIME",)])
    now = int(clock[0])
    first = now // 60 // per_span * per_span - minutes + per_span  # round, so that a reload shows the same spans
    reads = [("HGETALL", shard.keys.minute(first + index)) for index in range(minutes) for shard in shards]
    replies, size = (yield Read(reads)), len(shards)
    filled = [fill_quiet_minutes(replies[shard::size]) for shard in range(size)]
    records = [add_up_records(some) for some in zip(*filled, strict=True)]
    spans = []
    for index in range(0, minutes, per_span):
        begin, some = (first + index) * 60, records[index : index + per_span]
        part = Histograms.from_records(some)
        spans.append(
            Span(
                begin,
                min(60 * per_span, now - begin + 1),
                wait=part.wait,
                run=part.run,
                **count_tasks(some),
                **merge(some),
            )
        )
    whole = Histograms.from_records(records)
    return Activity(spans, whole.wait, whole.run, whole.wait_by_priority, queue.missing, whole.wait_by_lane)


def _activity_of_hours(queue: Shards, count: int, per_span: int) -> Operation[Activity]:
    """Read the activity of the last ``count`` hours, in spans of ``per_span`` hours."""
    clock, *found = yield Read([("TIME",), *(("HGETALL", shard.keys("stats:hours")) for shard in queue)])
    now = int(clock[0])
    first = now // 3600 // per_span * per_span - count + per_span
    all_hours, spans = hours(found, first, count), []
    for index in range(0, count, per_span):
        begin, some = (first + index) * 3600, all_hours[index : index + per_span]
        totals = Counter[str]()
        for hour in some:
            totals.update(hour.totals)
        attempts = totals["finished"] + totals["failed"]
        spans.append(
            Span(
                begin,
                min(3600 * per_span, now - begin + 1),
                **{name: totals[name] for name in ("pushed", "finished", "failed", "promoted")},
                dead=totals["died"],
                violated=totals["sla_violated"],
                wait=Percentiles(),
                run=Percentiles(),
                ready=max((hour.ready for hour in some if hour.ready is not None), default=None),
                oldest_wait=max((hour.oldest_wait for hour in some if hour.oldest_wait is not None), default=None),
                mean_run=totals["run:sum"] / 1_000_000 / attempts if attempts else None,
            )
        )
    return Activity(spans, Percentiles(), Percentiles(), missing_shards=queue.missing)


HOUR_MICROSECONDS = 3_600_000_000
"""One hour in microseconds."""
WAIT_BUCKETS = 16


@dataclass(frozen=True)
class LastHour:
    """The usage of the last hour. ``busy_seconds`` is the worker time of attempts that ended in it, and of running
    attempts until now. ``wait`` has the waits of the tasks that started in it.

    ``wait.count`` is the number of tasks that started. The percentiles, of waits between 10 ms and 13 hours, are right
    to a factor of 1.8. ``waits`` has the number of starts in each bucket, from which the percentiles are calculated.
    """

    busy_seconds: float = 0.0
    wait: Percentiles = field(default_factory=Percentiles)
    waits: dict[int, float] = field(default_factory=dict, repr=False)


def wait_bucket_middle(bucket: int) -> float:
    """Return the middle of a bucket of waits, in seconds. The first bucket ends at 10 ms; each later bucket ends at
    three times the end of the previous bucket.
    """
    return float(0.01 * 3 ** (bucket - 0.5))


def last_hour(record: Mapping[bytes, bytes], now_us: int) -> LastHour:
    """Return the usage in a user's record, as of a moment in microseconds since the epoch."""
    waits = dict.fromkeys(range(WAIT_BUCKETS), 0.0)
    for half, part in _recent_halves(record, now_us):
        for bucket in waits:
            waits[bucket] += part * number(record.get(b"recent:%d:%d" % (half, bucket)))
    return _usage(busy_last_hour(record, now_us), waits)


def busy_last_hour(record: Mapping[bytes, bytes], now_us: int) -> float:
    """Return the seconds of worker time in a user's record, also of its running tasks, or in a shard's counters, as of a
    moment in microseconds since the epoch.
    """
    halves = _recent_halves(record, now_us)
    ended = sum(part * number(record.get(b"recent:%d" % half)) / 1_000_000 for half, part in halves)
    return ended + _running_seconds(record, now_us)


SCORE_EPOCH_SECONDS = 1_735_689_600
"""2025-01-01, from which scores and sums of moments count (``EPOCH`` in lua/lib/clock.lua)."""


def _running_seconds(record: Mapping[bytes, bytes], now_us: int) -> float:
    """Return the time that a user's running tasks have taken until now, at most one hour each; 0 for a shard's counters.

    Tasks that run in one call count once: ``start`` is the sum of the moments at which the calls began.
    """
    calls = number(record.get(b"run")) - number(record.get(b"companions"))
    taken = calls * (now_us - SCORE_EPOCH_SECONDS * 1_000_000) - number(record.get(b"start"))
    return max(0.0, min(taken, calls * HOUR_MICROSECONDS)) / 1_000_000


def _recent_halves(record: Mapping[bytes, bytes], now_us: int) -> list[tuple[int, float]]:
    """Return the recorded hours (0 or 1) that overlap the last sixty minutes, each with the part of it that lies in
    them.
    """
    hour, since = divmod(now_us, HOUR_MICROSECONDS)
    written = int(number(record.get(b"hour")))
    parts = ((hour, 1.0), (hour - 1, 1 - since / HOUR_MICROSECONDS))
    return [(at % 2, part) for at, part in parts if written - at in (0, 1)]  # another field is of an older hour


def total_usage(hours: Iterable[LastHour]) -> LastHour:
    """Add up the usage of several users in the last hour."""
    busy, waits = 0.0, dict.fromkeys(range(WAIT_BUCKETS), 0.0)
    for hour in hours:
        busy += hour.busy_seconds
        for bucket, count in hour.waits.items():
            waits[bucket] += count
    return _usage(busy, waits)


def _usage(busy: float, waits: dict[int, float]) -> LastHour:
    return LastHour(
        busy, percentiles(waits, wait_bucket_middle), {bucket: count for bucket, count in waits.items() if count}
    )


def busiest_users(shards: Shards, sample: int) -> Operation[PartialList[str]]:
    """Return the users of waiting tasks, the most frequent one first, from a random sample of each state. Each shard
    has an equal part of the sample.

    The sample is random, because at fixed distances, tasks that arrive in the same rhythm would be drawn always or
    never.
    """
    check_limit(sample)
    found = Counter[str]()
    for shard in shards:
        states = [shard.keys.state(state) for state in ("queued", "scheduled", "deferred")]
        drawn = yield Read([("ZRANDMEMBER", state, max(1, sample // len(shards))) for state in states])
        users = yield from read_task_fields(shard.keys, [task_id.decode() for ids in drawn for task_id in ids], "user")
        found.update(user.decode() for (user,) in users if user is not None)
    return PartialList([user_id for user_id, _count in found.most_common()], shards.missing)


DEFAULT_STATS_MINUTES = 60
LONGEST_WAITS_READ = 1
"""The number of tasks of each kind that are read to find the longest wait, so that the cost of the read is constant."""
TOTAL_FIELDS = {
    *("pushed", "started", "finished", "failed", "retried", "canceled", "returned", "resolved", "promoted"),
    *("dead", "died", "requeued", "discarded", "dead_letters_shortened", "results_removed", "xcom_removed"),
    *("sla_at_risk", "sla_overdue", "sla_violated"),
}
"""Prefixes (up to the colon) of the fields of the stats hash that are totals. Other fields are private to the engine.
"""


@dataclass(frozen=True)
class MinuteStats:
    """The activity of one minute (``minute`` × 60 is its start as Unix time).

    These are numbers of tasks: ``pushed``, ``finished``, ``failed`` (attempts), ``dead`` (new dead letters),
    ``violated`` (started after their SLA), ``promoted`` (moved to a higher priority). ``wait_p95`` and ``run_p95`` are the 95th
    percentiles of waits and run times in seconds.
    """

    minute: int
    pushed: int
    finished: int
    failed: int
    dead: int
    violated: int = 0
    promoted: int = 0
    wait_p95: float = 0.0
    run_p95: float = 0.0
    ready: int | None = None
    """The number of ready tasks when the minute's sample was taken, None without a sample (see `Span`)."""
    oldest_wait: float | None = None
    """The longest wait of a task that could start, in seconds, in the sample of a worker; None without such a sample.
    """


@dataclass(frozen=True)
class DependencyStats:
    """Tasks that wait for other tasks: ``deferred`` is their number, and ``edges`` the number of their dependencies
    together.

    ``resolution`` are percentiles of the time from the end of a task's last dependency to the task's release, in the
    last hour. ``resolved`` is the number of tasks that were released since the queue's first task, and ``resolving``
    the number of ended tasks whose dependents are still to be notified.
    """

    deferred: int
    edges: int
    resolving: int
    resolved: int
    resolution: Percentiles


@dataclass(frozen=True)
class SlaCounts:
    """The SLAs of one priority's tasks since the queue's first task: how often they were at risk (``at_risk``), passed
    while the task still waited (``overdue``), and were missed by a late start (``violated``).
    """

    at_risk: int
    overdue: int
    violated: int


@dataclass(frozen=True)
class SlaStats:
    """The SLAs of all tasks since the queue's first task: how often they were at risk (``at_risk``), passed while the
    task still waited (``overdue``), and were missed by a late start (``violated``).

    ``promoted`` is the number of tasks that moved up a class because they starved; ``promoted_from`` has these numbers
    by the class before. ``by_priority`` has ``at_risk``, ``overdue`` and ``violated`` by the name of the priority that
    the task had then, the highest first.
    """

    at_risk: int
    overdue: int
    violated: int
    promoted: int
    promoted_from: dict[str, int]
    by_priority: dict[str, SlaCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class LaneStats:
    """The tasks of one lane: the numbers of ``ready`` and ``running`` tasks now, and of tasks that have ``started``
    since the queue's first task.

    ``wait`` are percentiles of the waits of the attempts that ended in the last hour, in seconds; ``waits`` are those of all
    attempts since the queue's first task.
    """

    ready: int
    running: int
    started: int
    wait: Percentiles
    waits: Distribution


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment. Counters are since its first task, percentiles and minutes of the last hour; times are in
    seconds.

    ``queue`` is its name. ``states`` are the numbers of tasks by state, ``depth`` those of ready tasks by priority,
    with ``"URGENT"`` and ``"BULK"`` if tasks of these lanes are ready. ``totals`` are the counters, ``dead`` the dead
    letters by failure type. ``users`` is the number of users with a record, and ``users_ready`` the number of users
    with a task of any lane that could start now. ``workers`` is the number of live workers. ``due`` is the number of
    entries that wait for a worker's maintenance: tasks whose time has come, ended leases, users whose rate allows
    another task. ``paused`` is whether the queue is paused.

    ``oldest_wait_seconds`` is the longest wait of a task that could start and is no bulk task. ``wait`` and ``run`` are
    percentiles of waits and run times, ``wait_by_priority`` those of waits by priority. ``dependencies`` and ``sla``
    are figures of these subjects; ``minutes`` are the figures of each minute, the oldest first. ``runs`` is like
    ``waits``, for run times.
    """

    queue: str
    states: dict[str, int]
    depth: dict[str, int]
    totals: dict[str, int]
    users: int
    users_ready: int
    workers: int
    due: int
    paused: bool
    oldest_wait_seconds: float
    wait: Percentiles
    wait_by_priority: dict[str, Percentiles]
    run: Percentiles
    dependencies: DependencyStats
    sla: SlaStats
    dead: dict[str, int]
    minutes: list[MinuteStats] = field(default_factory=list)
    waits: Distribution = field(default_factory=Distribution)
    """The waits of all attempts since the queue's first task; ``wait`` and ``run`` cover the last hour only."""
    runs: Distribution = field(default_factory=Distribution)
    held_back_wait_seconds: float = 0.0
    """The longest wait of a task that is held back: the queue, its user or its organization is paused, or the user or
    the organization runs as many tasks as it may or is out of rate. ``oldest_wait_seconds`` is that of tasks that could
    start."""
    missing_shards: tuple[int, ...] = ()
    """Numbers of the shards that can't be reached now. Their tasks are in none of the figures, and ``paused`` is about
    the other shards.
    """
    trend: Trend | None = None
    """The development of the backlog in the last minute; None if it is unknown, if the queue is paused, or if fewer than 10
    minutes were read."""
    pause: Pause | None = None
    """The note and the end of the queue's pause; None unless it is paused."""
    deployments: list[Deployment] = field(default_factory=list)
    """The last 50 times at which workers began to report another version of the project's code, the oldest first."""
    lanes: dict[Lane, LaneStats] = field(default_factory=dict)
    """The figures of each lane: ``"urgent"``, ``"normal"`` and ``"bulk"``."""
    waiting_at_limits: int = 0
    """The number of queued tasks that wait at a full limit by key."""


def stats(queue: Shards, minutes: int = DEFAULT_STATS_MINUTES) -> Operation[QueueStats]:
    """Return the figures of the shards that can be reached. ``queue`` are the shards, ``minutes`` the number of last
    minutes, from 0 to 60 (the default).
    """
    check_integer(minutes, "minutes", 0, DEFAULT_STATS_MINUTES)
    shards = tuple(queue)
    # Workers report to all shards, so the first shard has all deployments.
    general = [("TIME",), *(("LRANGE", shard.keys(DEPLOYMENTS_KEY), 0, -1) for shard in shards[:1])]
    (clock, *deployed), *found = yield from read_each(
        [general, *(_first_reads(shard) for shard in shards)], only_sound=True
    )
    now = int(clock[0]) + int(clock[1]) / 1_000_000
    last = int(now) // 60
    counters = [record for record, *_ in found]
    totals = _add_up_counters(counters)
    pauses = [decode_pause(record) for record in counters]
    sizes = zip(*(sizes for _, *sizes in found), strict=True)
    users, ring, resolving, *states_sizes = (sum(map(int, counts)) for counts in sizes)
    wanted = range(last - minutes + 1, last + 1)
    attended = [attendance_reads(shard, round(now * 1_000_000)) for shard in shards]
    minute_reads = [[("HGETALL", shard.keys.minute(minute)) for minute in wanted] for shard in shards]
    replies = yield from read_each([*attended, *minute_reads])
    workers, due = attendance(replies[: len(shards)])
    records = [add_up_records(counters) for counters in zip(*replies[len(shards) :], strict=True)]
    hour = Histograms.from_records(records)
    states = {state.value: size for state, size in zip(TaskState, states_sizes, strict=True)}
    waiting = yield from read_together([longest_waits.waits(shard, LONGEST_WAITS_READ) for shard in shards])
    by_minute = [_minute(minute, record) for minute, record in zip(wanted, records, strict=True)]
    depth = by_class(totals, "depth")
    by_lane = _lanes(totals, hour)
    return QueueStats(
        queue=queue.name,
        states=states,
        depth=depth,
        totals={name: totals[name] for name in sorted(totals) if name.partition(":")[0] in TOTAL_FIELDS},
        users=users,
        users_ready=ring + totals["behind"],
        workers=workers,
        due=due,
        paused=None not in pauses,
        pause=None if None in pauses else next(iter(pauses), None),
        oldest_wait_seconds=_compute_longest_wait([part.could_start for part in waiting], now),
        held_back_wait_seconds=_compute_longest_wait([part.held_back for part in waiting], now),
        wait=hour.wait,
        wait_by_priority=hour.wait_by_priority,
        run=hour.run,
        dependencies=DependencyStats(
            states["deferred"], totals["edges"], resolving, totals["resolved"], percentiles(hour.resolutions)
        ),
        sla=SlaStats(
            at_risk=totals["sla_at_risk"],
            overdue=totals["sla_overdue"],
            violated=totals["sla_violated"],
            promoted=totals["promoted"],
            promoted_from={name: totals[f"promoted:{Priority[name].value}"] for name in STARVABLE_PRIORITIES},
            by_priority=_sla_by_priority(totals),
        ),
        dead={kind.value: totals[f"lying:{kind.value}"] for kind in FailureType},
        minutes=by_minute,
        waits=_add_up(figures.waits for figures in by_lane.values()),
        runs=distribution(totals, "run"),
        missing_shards=queue.missing,
        trend=_trend(by_minute, now, sum(depth.values())) if None in pauses else None,
        deployments=[deployment for entries in deployed for deployment in parse_deployments(entries)],
        lanes=by_lane,
        waiting_at_limits=totals["limited"],
    )


def _sla_by_priority(totals: Mapping[str, int]) -> dict[str, SlaCounts]:
    counts = [by_class(totals, f"sla_{kind}") for kind in ("at_risk", "overdue", "violated")]
    names = [name for name in reversed(CLASS_NAMES.values()) if any(name in some for some in counts)]
    return {name: SlaCounts(*(some.get(name, 0) for some in counts)) for name in names}


def _add_up_counters(records: Iterable[Mapping[bytes, bytes]]) -> Counter[str]:
    totals = Counter[str]()
    for record in records:
        totals.update({name.decode(): int(number(value)) for name, value in record.items()})
    return totals


def lanes(queue: Shards, minutes: int) -> Operation[dict[Lane, LaneStats]]:
    """Return the figures of each lane as `stats` does, in two round trips."""
    shards = tuple(queue)
    clock, *counters = yield from read_sound([("TIME",), *(("HGETALL", shard.keys("stats")) for shard in shards)])
    last = int(clock[0]) // 60
    records = yield Read([("HGETALL", shard.keys.minute(last - ago)) for shard in shards for ago in range(minutes)])
    return _lanes(_add_up_counters(counters), Histograms.from_records(records))


def have_other_lanes(lanes: Mapping[Lane, LaneStats]) -> bool:
    """Return whether there are, or were, urgent or bulk tasks."""
    return any(figures.ready or figures.started for lane, figures in lanes.items() if lane != "normal")


def _lanes(totals: Mapping[str, int], hour: Histograms) -> dict[Lane, LaneStats]:
    ready = Counter[Lane]()
    for number_of_class in CLASS_NAMES:
        ready[read_lane(str(number_of_class))] += totals.get(f"depth:{number_of_class}", 0)

    def by_lane(name: str) -> Counter[Lane]:
        """Split a counter of all tasks by lane. The tasks of lanes urgent and bulk also have counters of their own."""
        found = Counter[Lane]({lane: totals.get(f"{name}:{lane}", 0) for lane in LANES})
        found["normal"] = totals.get(name, 0) - found.total()
        return found

    running, started = by_lane("running"), by_lane("started")
    kinds = {"urgent": "wait_urgent", "normal": "wait", "bulk": "wait_bulk"}
    return {
        lane: LaneStats(ready[lane], running[lane], started[lane], wait, distribution(totals, kinds[lane]))
        for lane, wait in hour.wait_by_lane.items()
    }


def _add_up(distributions: Iterable[Distribution]) -> Distribution:
    buckets, seconds = Counter[int](), 0.0
    for part in distributions:
        buckets.update(part.buckets)
        seconds += part.sum_seconds
    return Distribution(dict(sorted(buckets.items())), seconds)


TREND_MINUTES = 10
"""The number of minutes from which a trend of the backlog is computed."""
FINISHED_RATE_MINUTES = 5
"""Whole minutes over which the rate of finished tasks is calculated."""


def _trend(minutes: Sequence[MinuteStats], now: float, ready: int) -> Trend | None:
    if len(minutes) < TREND_MINUTES:
        return None
    samples = [(minute.minute * 60.0, minute.ready) for minute in minutes if minute.ready is not None]
    finished = sum(minute.finished for minute in minutes[-1 - FINISHED_RATE_MINUTES : -1])
    return backlog_trend(samples, now, ready, finished / (60 * FINISHED_RATE_MINUTES))


def _first_reads(commands: Commands) -> list[tuple[Any, ...]]:
    keys = commands.keys
    sizes = (("ZCARD", keys(name)) for name in ("users", "ring", "resolving"))
    return [("HGETALL", keys("stats")), *sizes, *_state_sizes(commands)]


def _state_sizes(commands: Commands) -> list[tuple[Any, ...]]:
    return [("ZCARD", commands.keys.state(state.value)) for state in TaskState]


def _compute_longest_wait(waiting: Sequence[Sequence[longest_waits.WaitingTask]], now: float) -> float:
    """Return the seconds that the oldest of these tasks has waited; each part begins with its oldest task.

    A task can be ready after ``now``: it was pushed after the clock was read, or its server's clock was set back.
    """
    return max([0.0, *(now - some[0].since for some in waiting if some)])


def _minute(minute: int, record: Mapping[bytes, bytes]) -> MinuteStats:
    histograms = Histograms.from_records([record])
    return MinuteStats(
        minute, wait_p95=histograms.wait.p95, run_p95=histograms.run.p95, **count_tasks([record]), **merge([record])
    )


@dataclass(frozen=True)
class ShardStats:
    """The figures of one ``shard`` (its number) now. ``states`` are the numbers of tasks by state, and ``users_ready``
    is the number of its users with a task that could start. ``node`` is the address of its node in the cluster, empty
    without a cluster. ``is_up`` is False if the shard can't be reached; all numbers are 0 then.
    """

    shard: int
    node: str
    states: dict[str, int]
    users_ready: int
    is_up: bool = True

    @property
    def depth(self) -> int:
        """The number of ready tasks."""
        return self.states[TaskState.QUEUED.value]


def shard_stats(shards: Shards, client: Any) -> Operation[PartialList[ShardStats]]:
    """Return the figures of every shard, also of the missing ones."""
    reads = [
        [("ZCARD", shard.keys("ring")), ("HGET", shard.keys("stats"), "behind"), *_state_sizes(shard)]
        for shard in shards
    ]
    found = dict(zip(shards, (yield from read_each(reads)), strict=True))
    return PartialList([_shard(shard, client, found.get(shard)) for shard in shards.all], shards.missing)


def _shard(commands: Commands, client: Any, sizes: Sequence[Any] | None) -> ShardStats:
    ring, behind, *by_state = sizes or [0] * (2 + len(TaskState))
    states = {state.value: size for state, size in zip(TaskState, by_state, strict=True)}
    node = clusters.address(client, str(commands.keys))
    return ShardStats(commands.keys.shard, node, states, ring + int(behind or 0), is_up=sizes is not None)
