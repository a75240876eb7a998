"""`queue.schedules.upcoming`: the runs of the next hours, their run times, overlaps, and overloads."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.due_times import Timing
from django_fairque.engine.schedules.forecast import (
    Collision,
    Forecast,
    PlannedRun,
    ScheduleForecast,
    find_collisions,
    merge_runs,
)
from django_fairque.engine.schedules.schedule_ops import Schedule
from tests.engine.conftest import NOW, MakeQueue, task
from tests.lab.benchmarks.admin import cost

DAY = 1_999_987_200.0
"""Midnight in UTC, of 18 May 2033, before `NOW`."""
HOUR = 3600
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Havana", "Pacific/Chatham")


def add(queue: FairQueue, name: str, cron: str | None = None, *, user: str = "ann", **options: Any) -> Schedule:
    made = task(user, name=options.pop("task_name", name))
    return queue.schedules.add(name, task=made, **({"cron": cron} if cron else {}), now=NOW, **options)


def run_once(queue: FairQueue, took: float, at: float) -> None:
    """Fire what is due, and let its one task run for this time."""
    queue.schedules.fire_due(now=at)
    (lease,) = queue.pop_batch(1, "w", now=at)
    queue.finish(lease, now=at + took)


def plan(found: Forecast, name: str) -> ScheduleForecast:
    return next(plan for plan in found.schedules if plan.schedule.name == name)


def begins(found: Forecast, name: str) -> list[float]:
    """Return the hours from `NOW` until each run."""
    return [round((run.begin - NOW) / HOUR, 3) for run in plan(found, name).runs]


def utc(*parts: int) -> float:
    return datetime(*parts, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type, misc]


class TestRuns:
    def test_runs_are_those_of_the_next_hours_in_the_schedules_zone(self, queue: FairQueue) -> None:
        add(queue, "tokyo", "33 9 * * *", timezone="Asia/Tokyo")  # 00:33 UTC, and it is 03:33:20
        add(queue, "seldom", "0 4 1 1 *")
        add(queue, "often", every=5 * HOUR)
        found = queue.schedules.upcoming(now=NOW)
        assert (found.begin, found.end) == (NOW, NOW + 24 * HOUR)
        assert begins(found, "tokyo") == [20.994]
        assert begins(found, "often") == [5, 10, 15, 20]
        assert begins(found, "seldom") == []
        assert [plan.schedule.name for plan in found.schedules] == ["often", "tokyo", "seldom"]
        assert begins(queue.schedules.upcoming(10, now=NOW), "often") == [5, 10]

    def test_a_paused_schedule_has_no_runs_until_its_pause_ends(self, queue: FairQueue) -> None:
        for name in ("never", "later"):
            add(queue, name, every=5 * HOUR)
        queue.schedules.pause("never", note="the shop moves", now=NOW)
        queue.schedules.pause("later", until=NOW + 12 * HOUR, now=NOW)
        found = queue.schedules.upcoming(now=NOW)
        assert (begins(found, "never"), begins(found, "later")) == ([], [15, 20])
        pause = plan(found, "never").pause
        assert pause is not None
        assert pause.note == "the shop moves"
        assert plan(found, "later").pause is not None

    def test_a_run_that_is_due_begins_now_unless_it_is_missed(self, queue: FairQueue) -> None:
        for name, options in (("skipped", {}), ("one", {"missed": "one"}), ("patient", {"catch_up": 7200})):
            add(queue, name, every=5 * HOUR, **options)
        found = queue.schedules.upcoming(now=NOW + 6 * HOUR)
        assert begins(found, "skipped")[:2] == [10, 15]
        assert begins(found, "one")[:2] == begins(found, "patient")[:2] == [6, 10]

    @pytest.mark.parametrize(("old", "new"), [('"0 5 * * *"', '"@daily"'), ('"UTC"', '"Mars/Olympus"')])
    def test_a_schedule_that_this_version_cannot_read_has_its_next_run(
        self, queue: FairQueue, redis: Redis, old: str, new: str
    ) -> None:
        add(queue, "s", "0 5 * * *")
        key = "fq:{default:0}:schedules"
        definition: Any = redis.hget(key, "s")
        redis.hset(key, "s", definition.replace(old.encode(), new.encode()))
        redis.hset(f"{key}:runs", "s", "damaged")
        assert plan(queue.schedules.upcoming(now=NOW), "s").runs == (PlannedRun(DAY + 5 * HOUR, DAY + 5 * HOUR + 1),)
        assert plan(queue.schedules.upcoming(1, now=NOW), "s").runs == ()

    def test_jitter_moves_a_planned_run_by_the_delay_of_its_task(self, queue: FairQueue) -> None:
        schedule = add(queue, "s", every=5 * HOUR, jitter=HOUR)
        (first, *_) = plan(queue.schedules.upcoming(now=NOW), "s").runs
        queue.schedules.fire_due(now=NOW + 5 * HOUR)
        made = queue.get_task(f"schedule:s:{int(NOW + 5 * HOUR)}000000")
        assert made.execute_after == pytest.approx(first.begin)
        assert first.begin == NOW + 5 * HOUR + schedule.put_off(NOW + 5 * HOUR)

    def test_a_schedule_of_each_minute_is_one_run_with_a_number(self, queue: FairQueue) -> None:
        add(queue, "cron", "* * * * *")
        add(queue, "seconds", every=1)
        add(queue, "office", "*/5 9-10 * * *")
        found = queue.schedules.upcoming(now=NOW)
        assert plan(found, "cron").runs == (PlannedRun(NOW + 40, NOW + 40 + 1439 * 60 + 1, 1440),)
        assert plan(found, "seconds").count == 86_400
        assert plan(found, "office").count == 24
        assert [plan(found, name).is_frequent for name in ("cron", "seconds", "office")] == [True, True, False]

    def test_a_break_of_more_than_an_hour_separates_frequent_runs(self) -> None:
        runs = merge_runs([0, 1800, 3600, 7201, 9000], 1)
        assert runs == [PlannedRun(0, 3601, 3), PlannedRun(7201, 9001, 2)]

    @pytest.mark.parametrize(
        ("begin", "expected"),
        [
            # Berlin: 01:59 becomes 03:00 on 29 March, 02:59 becomes 02:00 on 25 October. 02:30 runs once in both nights.
            (utc(2026, 3, 28, 12), {"30 2 * * *": [utc(2026, 3, 29, 1)], "30 4 * * *": [utc(2026, 3, 29, 2, 30)]}),
            (
                utc(2026, 10, 24, 12),
                {"30 2 * * *": [utc(2026, 10, 25, 0, 30)], "30 4 * * *": [utc(2026, 10, 25, 3, 30)]},
            ),
        ],
    )
    def test_runs_are_right_in_a_night_in_which_clocks_change(
        self, begin: float, expected: dict[str, list[float]]
    ) -> None:
        for cron, runs in expected.items():
            assert Timing(cron, None, "Europe/Berlin", 0).list_cron_runs(begin, begin + 24 * HOUR) == runs
        assert len(Timing("0 * * * *", None, "Europe/Berlin", 0).list_cron_runs(begin, begin + 24 * HOUR)) == 24

    def test_listed_runs_are_those_that_will_fire(self) -> None:
        """Compare with `Timing.find_next_run`, which fires them: random expressions, often near a change of the clock."""
        source = random.Random(7)
        changes = [
            utc(2026, 3, 29, 1),
            utc(2026, 10, 25, 1),
            utc(2026, 3, 8, 7),
            utc(2026, 11, 1, 6),
            utc(2026, 4, 4, 15),
        ]

        def field(low: int, high: int) -> str:
            first, last = sorted(source.choices(range(low, high + 1), k=2))
            return source.choice(
                ["*", "*", f"*/{source.choice([7, 15])}", str(first), f"{first}-{last}", f"{first},{last}"]
            )

        count = 0
        for _ in range(250):
            days = source.choice(["* * *", "* * *", f"* * {field(0, 6)}", f"{field(1, 28)} * *", "L * *", "* * 5L"])
            timing = Timing(f"{field(0, 59)} {field(0, 23)} {days}", None, source.choice(ZONES), 0)
            begin = source.choice(changes) + source.uniform(-30, 10) * HOUR
            moment = begin
            fired: list[float] = []
            while (moment := timing.find_next_run(moment) or begin + 1e6) <= begin + 24 * HOUR and len(fired) < 100:
                fired.append(moment)
            assert timing.list_cron_runs(begin, begin + 24 * HOUR)[:100] == fired, timing
            count += len(fired)
        assert count > 3000


class TestRunTimes:
    def test_the_run_time_is_the_median_of_the_latest_runs(self, queue: FairQueue) -> None:
        add(queue, "s", every=5 * HOUR)
        for index, took in enumerate([9000, 10, 20, 30, 1000, 40], start=1):  # the first is not among the latest five
            run_once(queue, took, NOW + index * 5 * HOUR)
        found = plan(queue.schedules.upcoming(now=NOW + 32 * HOUR), "s")
        assert found.expected == 30
        assert [run.end - run.begin for run in found.runs] == [30] * 5

    def test_the_run_time_of_a_new_schedule_is_that_of_its_task_name(self, queue: FairQueue) -> None:
        add(queue, "new", every=5 * HOUR, task_name="report")
        add(queue, "other", every=5 * HOUR)
        for took in (100, 100, 5000):
            queue.push(task("a", name="report"), now=NOW - 20 * HOUR)
            queue.finish(*queue.pop_batch(1, "w", now=NOW - 20 * HOUR), took=took, now=NOW - 20 * HOUR)
        found = queue.schedules.upcoming(now=NOW)
        assert plan(found, "new").expected == pytest.approx(100, rel=0.2)
        assert plan(found, "other").expected is None
        assert [run.end - run.begin for run in plan(found, "other").runs] == [1] * 4

    def test_a_task_that_runs_now_is_a_run(self, queue: FairQueue) -> None:
        add(queue, "s", every=5 * HOUR)
        run_once(queue, 2 * HOUR, NOW + 5 * HOUR)
        queue.schedules.fire_due(now=NOW + 10 * HOUR)
        queue.pop_batch(1, "w", lease=20_000, now=NOW + 10 * HOUR)
        running, following, *_ = plan(queue.schedules.upcoming(now=NOW + 11 * HOUR), "s").runs
        assert running == PlannedRun(NOW + 10 * HOUR, NOW + 12 * HOUR, is_running=True)
        assert following == PlannedRun(NOW + 15 * HOUR, NOW + 17 * HOUR)
        late = plan(queue.schedules.upcoming(now=NOW + 13 * HOUR), "s").runs[0]
        assert (late.is_running, late.end) == (True, NOW + 13 * HOUR + 1)


class TestCollisions:
    def test_overlaps_and_overloads_equal_the_expected_counts(self, queue: FairQueue) -> None:
        """At 05:00 two runs of 30 minutes begin, at 05:20 one of 10 minutes, and at 05:30 one more. There are two slots."""
        took = {"export": 1800, "import": 1800, "mail": 600, "later": 600, "alone": 600}
        for name, cron in zip(took, ("0 5 * * *", "0 5 * * *", "20 5 * * *", "30 5 * * *", "0 9 * * *"), strict=True):
            add(queue, name, cron, catch_up=24 * HOUR)
        queue.schedules.fire_due(now=DAY + 10 * HOUR)
        leases = queue.pop_batch(5, "w", lease=HOUR, now=DAY + 10 * HOUR)
        for lease in sorted(leases, key=lambda lease: took[lease.name]):
            queue.finish(lease, now=DAY + 10 * HOUR + took[lease.name])
        now, five = DAY + 11 * HOUR, DAY + 29 * HOUR
        queue.heartbeat("w", {"concurrency": "2", "status": "working"}, now=now)
        queue.heartbeat("old", {"concurrency": "8", "status": "draining"}, now=now)
        found = queue.schedules.upcoming(now=now)
        assert {plan.schedule.name: plan.expected for plan in found.schedules} == took
        assert found.slots == 2
        assert found.overlaps == (Collision(five, five + 1800, ("export", "import", "mail"), 3),)
        assert found.overloads == (Collision(five + 1200, five + 1800, ("export", "import", "mail"), 3),)

    def test_collisions_agree_with_a_count_of_each_second(self) -> None:
        source = random.Random(3)
        found = 0
        for _ in range(60):
            plans, spans = [], []
            for number in range(source.randint(1, 6)):
                starts = sorted(source.sample(range(500), source.randint(0, 6)))
                runs = [(start, start + source.randint(1, 60)) for start in starts]
                spans += [(f"s{number}", *run) for run in runs]
                planned = tuple(PlannedRun(begin, end) for begin, end in runs)
                plans.append(ScheduleForecast(Schedule(f"s{number}", {}), 1.0, planned, None))
            slots = source.randint(1, 4)
            overlaps, overloads = find_collisions(plans, slots, 0, 700)
            assert list(overlaps) == count_seconds(spans, 1)
            assert list(overloads) == count_seconds(spans, slots)
            found += len(overlaps) + len(overloads)
        assert found > 200

    def test_frequent_schedules_count_for_slots_alone_with_their_mean(self) -> None:
        each_minute = ScheduleForecast(Schedule("often", {}), 90.0, (PlannedRun(0, 86_400, 960),), None)
        one = ScheduleForecast(Schedule("one", {}), 100.0, (PlannedRun(100, 200),), None)
        assert find_collisions([each_minute, one], 2, 0, 9e4) == ((), ())
        assert find_collisions([each_minute, one], 1, 0, 9e4) == ((), (Collision(100, 200, ("often", "one"), 2),))
        short = replace(each_minute, expected=0.01)
        assert find_collisions([short, one], 1, 0, 9e4) == ((), ()), "it needs a thousandth of a slot"
        assert find_collisions([each_minute, one], 0, 0, 9e4) == ((), ()), "without a worker there is nothing to exceed"

    @pytest.mark.parametrize(("overlap", "expected"), [("allow", 2), ("skip", 0), ("queue", 0)])
    def test_runs_of_a_schedule_overlap_if_the_schedule_allows_overlaps(
        self, queue: FairQueue, overlap: str, expected: int
    ) -> None:
        add(queue, "s", every=5 * HOUR, overlap=overlap)
        run_once(queue, 6 * HOUR, NOW + 5 * HOUR)
        found = queue.schedules.upcoming(15, now=NOW + 12 * HOUR)
        assert [(found.names, found.runs) for found in found.overlaps] == [(("s",), 2)] * expected


def count_seconds(spans: list[tuple[str, int, int]], most: int) -> list[Collision]:
    """Return the times with more than ``most`` runs, from the runs in each second."""
    found: list[Collision] = []
    for second in range(700):
        names = [name for name, begin, end in spans if begin <= second < end]
        if len(names) <= most:
            continue
        last = found[-1] if found and found[-1].end == second else Collision(second, second, (), 0)
        found = [collision for collision in found if collision is not last]
        together = tuple(sorted({*last.names, *names}))
        found.append(Collision(last.begin, second + 1, together, max(last.runs, len(names))))
    return found


class TestScheduledTasks:
    def test_scheduled_tasks_are_counted_by_the_hour_of_the_clock(self, queue: FairQueue) -> None:
        for minutes in (-1, 10, 27, 86, 24 * 60 - 1, 24 * 60 + 1):  # NOW is 03:33:20
            queue.push(task("ann", execute_after=NOW + minutes * 60), now=NOW - 600)
        counts = queue.schedules.upcoming(now=NOW).scheduled
        assert len(counts) == 25
        assert counts[:4] == ((NOW, 2), (DAY + 4 * HOUR, 2), (DAY + 5 * HOUR, 0), (DAY + 6 * HOUR, 0))
        assert counts[-1] == (DAY + 27 * HOUR, 1)
        assert sum(count for _, count in counts) == 5


@pytest.mark.parametrize("hours", [0, 49, "24", 1.5])
def test_a_forecast_for_other_than_1_to_48_hours_is_refused(queue: FairQueue, hours: Any) -> None:
    with pytest.raises(TaskValidationError, match="hours must be a whole number from 1 to 48"):
        queue.schedules.upcoming(hours)


def test_all_shards_are_read_in_a_few_round_trips(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(shards=4)
    for number in range(12):
        add(queue, f"s{number}", every=(5 + number % 3) * HOUR, user=f"u{number}")
        queue.push(task(f"u{number}", execute_after=NOW + 1800), now=NOW)
    found = queue.schedules.upcoming(now=NOW)
    assert (len(found.schedules), sum(count for _, count in found.scheduled)) == (12, 12)
    assert len(found.overlaps) > 3
    assert cost(redis, lambda: queue.schedules.upcoming(now=NOW))[1] <= 7
