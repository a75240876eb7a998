"""The expected runs of schedules in the next hours: when each begins, how long it takes, and which run at the same time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import MAX_PAGE_SIZE
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import check_integer, number, to_us
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.schedules.schedule_ops import read_runs, read_schedules
from django_fairque.engine.scripting.operations import Operation, parse_scores
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.statistics.task_names import typical_run_times

if TYPE_CHECKING:
    from django_fairque.engine.model.pauses import Pause
    from django_fairque.engine.schedules.schedule_ops import Schedule, ScheduleRun
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

FORECAST_HOURS = 24
MAX_FORECAST_HOURS = 48
FREQUENT_RUNS_PER_HOUR = 2
"""The most runs per hour of a schedule whose runs are listed one by one. Successive runs of a more frequent schedule
are put together."""
MAX_GAP_SECONDS = 3600
"""The longest time between the beginnings of two successive runs of a frequent schedule that are put together."""
MEASURED_RUNS = 5
"""The number of a schedule's latest ended runs whose run times are read."""
MIN_RUN_SECONDS = 1.0
"""The minimum time for which a run is expected to occupy a slot, also if its run time is unknown."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a schedule from ``begin`` to ``end``, as Unix times; or ``count`` successive runs of a frequent
    schedule.

    ``is_running`` is whether its task runs already; ``end`` is then the usual end, or within the next second if that
    has passed.
    """

    begin: float
    end: float
    count: int = 1
    is_running: bool = False


@dataclass(frozen=True)
class ScheduleForecast:
    """The expected ``runs`` of a ``schedule``, in their order. ``expected`` is the run time of one run in seconds, None
    if unknown: the median of its last ended runs, or else of all tasks with its name in the last 24 hours. ``pause`` is
    its pause now.
    """

    schedule: Schedule
    expected: float | None
    runs: tuple[PlannedRun, ...]
    pause: Pause | None

    @property
    def count(self) -> int:
        """The number of runs that have not begun."""
        return sum(run.count for run in self.runs if not run.is_running)

    @property
    def is_frequent(self) -> bool:
        """Whether successive runs are put together: there are more than two in each hour."""
        return any(run.count > 1 for run in self.runs)

    @property
    def first(self) -> float | None:
        """The beginning of the schedule's next run, as Unix time; None if no run follows."""
        return next((run.begin for run in self.runs if not run.is_running), None)


@dataclass(frozen=True)
class Collision:
    """A time from ``begin`` to ``end`` (Unix times) in which several runs are expected at once: at most ``runs``, of
    schedules named ``names``.
    """

    begin: float
    end: float
    names: tuple[str, ...]
    runs: int


@dataclass(frozen=True)
class Forecast:
    """The runs that are expected from ``begin`` to ``end``, as Unix times.

    - ``schedules``: one `ScheduleForecast` for each schedule, ordered by their next runs; schedules without a next run
      come last, by name.
    - ``scheduled``: for each hour of the clock (UTC), its beginning and the number of tasks that are scheduled in it.
      The first entry begins at ``begin``, and contains tasks that are due.
    - ``slots``: the tasks that the running workers can run at once; 0 if none runs.
    - ``overlaps``: times with two or more runs at once. Frequent schedules are left out: they would overlap with all others.
    - ``overloads``: times with more runs than ``slots``; none if no worker runs. Frequent schedules count with the mean
      number of their runs at once.
    - ``missing_shards``: the numbers of shards that could not be reached.
    """

    begin: float
    end: float
    schedules: tuple[ScheduleForecast, ...]
    scheduled: tuple[tuple[float, int], ...]
    slots: int
    overlaps: tuple[Collision, ...]
    overloads: tuple[Collision, ...]
    missing_shards: tuple[int, ...] = ()


def forecast(shards: Shards, hours: int, now: float | None) -> Operation[Forecast]:
    check_integer(hours, "hours", 1, MAX_FORECAST_HOURS)
    begin = yield from server_time(now)
    end = begin + hours * 3600
    living = tuple(shards)
    if not living:
        shards.check_present("the next runs of schedules can't be read")
    edges = [begin, *(float(edge) for edge in range(int(begin // 3600 + 1) * 3600, math.ceil(end), 3600)), end]
    reads: list[tuple[Any, ...]] = [("ZRANGE", living[0].keys("workers"), 0, MAX_PAGE_SIZE - 1, "WITHSCORES")]
    for shard in living:
        reads.append(("HGETALL", shard.keys("schedules:runs")))
        key = shard.keys.state("scheduled")
        for index, (first, last) in enumerate(pairwise(edges)):
            reads.append(("ZCOUNT", key, to_us(first) if index else "-inf", f"({to_us(last)}"))
    found, (workers, *replies) = yield from read_schedules(living, reads)
    per_shard = len(edges)
    latest = dict(zip(living, replies[::per_shard], strict=True))
    runs = {
        schedule.name: read_runs(schedule.name, latest[shard].get(schedule.name.encode()), 2 * MEASURED_RUNS)
        for shard, schedule in found
    }
    measured, slots = yield from _measure(living[0], found, runs, workers, to_us(begin))
    unknown = any(times.expected is None for times in measured.values())
    by_name = (yield from typical_run_times(shards, begin)) if unknown else {}
    schedules = [
        _plan(schedule, measured[schedule.name], by_name.get(str(schedule.task.get("name", ""))), begin, end)
        for _, schedule in found
    ]
    overlaps, overloads = find_collisions(schedules, slots, begin, end)
    counts = [
        sum(replies[start + 1 + hour] for start in range(0, len(replies), per_shard)) for hour in range(per_shard - 1)
    ]
    return Forecast(
        begin,
        end,
        tuple(sorted(schedules, key=lambda plan: (plan.first or math.inf, plan.schedule.name))),
        tuple(zip(edges, counts, strict=False)),
        slots,
        overlaps,
        overloads,
        shards.missing,
    )


@dataclass(frozen=True)
class _Measured:
    """The median run time of a schedule's last runs, and the starts of its tasks that run now."""

    expected: float | None
    running: tuple[float, ...]


def _measure(
    home: Commands,
    found: Sequence[tuple[Commands, Schedule]],
    runs: Mapping[str, Sequence[ScheduleRun]],
    workers: Any,
    moment: int,
) -> Operation[tuple[dict[str, _Measured], int]]:
    """Read the run times of the latest runs, and the number of slots of the workers that live at ``moment`` (µs)."""
    tasks = [
        (shard, schedule.name, run.task_id)
        for shard, schedule in found
        for run in [run for run in runs[schedule.name] if run.task_id][:MEASURED_RUNS]
    ]
    names = [name.decode() for name, until in parse_scores(workers) if until > moment]
    records, infos = yield from read_fields(
        [(shard.keys, task_id) for shard, _, task_id in tasks],
        ("state", "started", "ended"),
        [("HMGET", home.keys.worker(name), "concurrency", "status") for name in names],
    )
    took: dict[str, list[float]] = {}
    running: dict[str, list[float]] = {}
    for (_, name, _), (state, started, ended) in zip(tasks, records, strict=True):
        if state == TaskState.STARTED.value.encode() and started:
            running.setdefault(name, []).append(number(started) / 1_000_000)
        elif state == TaskState.FINISHED.value.encode() and started and ended:
            took.setdefault(name, []).append(max(0.0, (number(ended) - number(started)) / 1_000_000))
    slots = sum(int(number(count)) for count, status in infos if status not in {b"draining", b"stopping"})
    measured = {
        schedule.name: _Measured(
            median(took[schedule.name]) if schedule.name in took else None, tuple(running.get(schedule.name, ()))
        )
        for _, schedule in found
    }
    return measured, slots


def _plan(schedule: Schedule, measured: _Measured, of_name: float | None, begin: float, end: float) -> ScheduleForecast:
    expected = of_name if measured.expected is None else measured.expected
    length = max(expected or 0.0, MIN_RUN_SECONDS)
    planned = [
        PlannedRun(started, max(started + length, begin + MIN_RUN_SECONDS), is_running=True)
        for started in sorted(measured.running)
    ]
    planned += _planned_runs(schedule, begin, end, length)
    if schedule.overlap != "allow":  # two tasks of the schedule never run at once
        planned = [
            replace(run, end=min(run.end, max(run.begin, following.begin))) for run, following in pairwise(planned)
        ] + planned[-1:]
    return ScheduleForecast(schedule, expected, tuple(planned), schedule.get_pause(begin))


def _planned_runs(schedule: Schedule, begin: float, end: float, length: float) -> list[PlannedRun]:
    """Return the runs from ``begin`` to ``end`` that take ``length`` seconds."""
    if schedule.next_at is None:
        return []
    due = [schedule.next_at] if _is_due(schedule, begin) else []
    first = max(begin, schedule.pause_until or 0)
    most = FREQUENT_RUNS_PER_HOUR * (end - begin) / 3600
    timing = schedule.timing
    try:
        if timing.every is None:
            times = due + timing.list_cron_runs(first, end)
        else:
            following = timing.find_next_run(first) or end
            count = int((end - following) // timing.every) + 1
            if count > most:  # the schedule has more than two runs in each hour
                return [PlannedRun(following, following + (count - 1) * timing.every + length, count)]
            times = due + [following + index * timing.every for index in range(count)]
    except TaskValidationError:  # another release wrote the schedule
        times = [schedule.next_at] if begin <= schedule.next_at <= end else []
        return [PlannedRun(at, at + length) for at in times]
    if len(times) > most:
        return merge_runs(times, length)
    if schedule.jitter:
        times = [at + schedule.put_off(at, following) for at, following in zip(times, [*times[1:], None], strict=True)]
    return [PlannedRun(at, at + length) for at in (max(begin, at) for at in times)]


def _is_due(schedule: Schedule, moment: float) -> bool:
    """Return whether the schedule's run time has come, so that the next worker that checks schedules pushes its task."""
    if schedule.next_at is None or schedule.next_at > moment:
        return False
    return schedule.missed != "skip" or moment - schedule.next_at <= schedule.catch_up


def merge_runs(times: Sequence[float], length: float) -> list[PlannedRun]:
    """Put successive runs of ``length`` seconds together if at most an hour lies between their beginnings."""
    breaks = [index for index, (at, following) in enumerate(pairwise(times), 1) if following - at > MAX_GAP_SECONDS]
    return [
        PlannedRun(times[first], times[last - 1] + length, last - first)
        for first, last in pairwise([0, *breaks, len(times)])
    ]


@dataclass(frozen=True)
class _Load:
    """A change of the load at a moment, by a number of ``runs`` of one schedule. ``is_listed`` is whether these runs
    are listed one by one.
    """

    at: float
    runs: float
    name: str
    is_listed: bool


def find_collisions(
    schedules: Iterable[ScheduleForecast], slots: int, begin: float, end: float
) -> tuple[tuple[Collision, ...], tuple[Collision, ...]]:
    """Return the overlaps and overloads of a `Forecast` from ``begin`` to ``end`` with ``slots`` slots."""
    loads = sorted((load for plan in schedules for load in _loads(plan, begin, end)), key=lambda load: load.at)
    overlaps, overloads = _Period(), _Period()
    listed, active = Counter[str](), Counter[str]()
    total, level = 0.0, 0
    for at, group in groupby(loads, key=lambda load: load.at):
        changed = list(group)
        for load in changed:
            step = 1 if load.runs > 0 else -1
            active[load.name] += step
            total += load.runs
            if load.is_listed:
                listed[load.name] += step
                level += step
        names = {load.name for load in changed}
        overlaps.update(at, names, listed, level, is_open=level > 1)
        # A frequent schedule counts with the mean number of its runs, so the total may be a fraction.
        runs = math.floor(total + 0.5)
        overloads.update(at, names, active, runs, is_open=0 < slots < runs)
    return tuple(overlaps.found), tuple(overloads.found)


def _loads(plan: ScheduleForecast, begin: float, end: float) -> Iterator[_Load]:
    for run in plan.runs:
        amount = 1.0
        if run.count > 1:
            length = MIN_RUN_SECONDS if plan.expected is None else plan.expected
            amount = run.count * length / (run.end - run.begin)
            amount = amount if plan.schedule.overlap == "allow" else min(1.0, amount)
        first, last = max(run.begin, begin), min(run.end, end)
        if last > first:
            yield _Load(first, amount, plan.schedule.name, run.count == 1)
            yield _Load(last, -amount, plan.schedule.name, run.count == 1)


class _Period:
    """Collects the overlaps or the overloads of a forecast, in the order of time."""

    def __init__(self) -> None:
        self.found: list[Collision] = []
        self._begin: float | None = None
        self._names: set[str] = set()
        self._runs = 0

    def update(self, at: float, changed: Iterable[str], active: Mapping[str, int], runs: int, *, is_open: bool) -> None:
        """Continue with the numbers of runs from ``at`` on. Only the numbers of the ``changed`` schedules differ from
        before.
        """
        if is_open and self._begin is None:
            self._begin, self._runs = at, runs
            self._names = {name for name, count in active.items() if count > 0}
        elif is_open:
            self._runs = max(self._runs, runs)
            self._names.update(name for name in changed if active.get(name, 0) > 0)
        elif self._begin is not None:
            self.found.append(Collision(self._begin, at, tuple(sorted(self._names)), self._runs))
            self._begin = None
