"""The backlog over time: samples that maintenance records, and what follows from them."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.backlog import Trend, backlog_trend
from django_fairque.monitoring.report import trend_words
from tests.counting import commands
from tests.engine.conftest import task

HOURS = "fq:{default:0}:stats:hours"


def this_minute() -> float:
    """A moment a few minutes ago, at the start of a minute."""
    return time.time() // 60 * 60 - 300


def test_a_sweep_records_a_sample_once_a_minute(queue: FairQueue) -> None:
    now = this_minute()
    queue.push_batch([task("a") for _ in range(7)], now=now - 30)
    queue.sweep(now=now)
    queue.push(task("b"), now=now + 5)
    queue.sweep(now=now + 10)
    queue.sweep(now=now + 60)
    minutes = {minute.minute: minute for minute in queue.get_stats().minutes}
    first, second, none = (minutes[int(now) // 60 + index] for index in (0, 1, 2))
    assert (first.ready, second.ready) == (7, 8)
    assert first.oldest_wait == pytest.approx(30, abs=0.01)
    assert second.oldest_wait == pytest.approx(90, abs=0.01)
    assert (none.ready, none.oldest_wait) == (None, None), "no worker ran"
    span = queue.get_activity(10, 5).spans
    assert max(minute.ready or 0 for minute in span) == 8
    assert max(minute.oldest_wait or 0 for minute in span) == pytest.approx(90, abs=0.01)


def test_an_empty_backlog_is_recorded_as_a_sample(queue: FairQueue) -> None:
    now = this_minute()
    queue.sweep(now=now)
    found = next(minute for minute in queue.get_stats().minutes if minute.minute == int(now) // 60)
    assert (found.ready, found.oldest_wait) == (0, 0)


def test_tasks_that_are_held_back_are_ready_but_not_the_oldest_wait(queue: FairQueue) -> None:
    now = this_minute()
    queue.push_batch([task("paused") for _ in range(3)], now=now - 500)
    queue.user("paused").pause(now=now - 500)
    queue.push(task("b"), now=now - 10)
    queue.sweep(now=now)
    found = next(minute for minute in queue.get_stats().minutes if minute.minute == int(now) // 60)
    assert found.ready == 4
    assert found.oldest_wait == pytest.approx(10, abs=0.01)


def test_the_recorded_wait_is_not_that_of_a_younger_task_that_is_checked_earlier(queue: FairQueue) -> None:
    now = this_minute()
    queue.push(task("old", sla=5), now=now - 90)
    queue.sweep(now=now - 61)
    queue.push(task("young", sla=5), now=now - 1)
    queue.sweep(now=now)
    found = next(minute for minute in queue.get_stats().minutes if minute.minute == int(now) // 60)
    assert found.oldest_wait == pytest.approx(90, abs=0.01)


def test_samples_of_shards_are_added_up_and_the_oldest_wait_is_the_longest(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=4))
    now = this_minute()
    for number in range(40):
        queue.push(task(f"u{number}"), now=now - 40 + number)
    queue.sweep(now=now)
    found = next(minute for minute in queue.get_stats().minutes if minute.minute == int(now) // 60)
    assert found.ready == 40
    assert found.oldest_wait == pytest.approx(40, abs=0.01)
    week = queue.get_activity(10_080, 60)
    assert (len(week.spans), max(span.ready or 0 for span in week.spans)) == (168, 40)


def test_the_backlog_of_seven_days_is_stored_by_the_hour_in_one_bounded_record(queue: FairQueue, redis: Redis) -> None:
    begin = time.time() // 3600 * 3600 - 8 * 86_400
    for hour in range(8 * 24):
        now = begin + 3600 * hour
        queue.push_batch([task("a"), task("a")], now=now)
        queue.sweep(now=now + 1)
        (lease,) = queue.pop_batch(1, "w", now=now + 60)
        queue.finish(lease, took=3, now=now + 63)
        queue.sweep(now=now + 120)
    assert redis.hlen(HOURS) == 170
    assert (redis.memory_usage(HOURS) or 0) < 64_000
    activity = queue.get_activity(10_080, 60)
    assert len(activity.spans) == 168
    inner = activity.spans[:-1]
    assert {(span.pushed, span.finished, span.failed) for span in inner} == {(2, 1, 0)}
    assert {span.mean_run for span in inner} == {3.0}
    assert [span.ready for span in inner] == [*range(inner[0].ready or 0, (inner[0].ready or 0) + 167)]
    assert activity.spans[-1].ready is None, "no sample of this hour yet"
    assert commands(redis, lambda: queue.get_activity(10_080, 60)) <= 2


def test_hours_without_a_worker_have_no_sample(queue: FairQueue) -> None:
    begin = time.time() // 3600 * 3600 - 10 * 3600
    for hour in (0, 1, 5):
        queue.push(task("a"), now=begin + 3600 * hour)
        queue.sweep(now=begin + 3600 * hour + 1)
    spans = queue.get_activity(10_080, 60).spans[-11:-4]
    assert [span.ready for span in spans] == [1, 2, None, None, None, 3, None]


def test_a_damaged_hour_hides_no_other_hour(queue: FairQueue, redis: Redis) -> None:
    now = time.time() // 3600 * 3600 - 7200
    queue.push(task("a"), now=now)
    queue.sweep(now=now + 1)
    hour = int(now) // 3600
    redis.hset(HOURS, mapping={str((hour + n) % 170): damaged for n, damaged in ((30, "x y"), (31, ""), (1, "1 2"))})
    assert [span.ready for span in queue.get_activity(10_080, 60).spans[-3:]] == [1, None, None]
    queue.sweep(now=now + 3601)
    assert [span.ready for span in queue.get_activity(10_080, 60).spans[-3:]] == [1, 1, None]


def test_statistics_say_how_the_backlog_develops(queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    queue.push_batch([task("a") for _ in range(100)], now=now - 300)
    queue.sweep(now=now - 300)
    assert queue.get_stats(0).trend is None
    for lease in queue.pop_batch(60, "w", now=now - 120):
        queue.finish(lease, now=now - 120)
    trend = queue.get_stats().trend
    assert trend is not None
    assert trend.seconds_left == pytest.approx(200, rel=0.25)
    assert trend.per_second == pytest.approx(60 / 300)
    queue.push_batch([task("a") for _ in range(660)])
    trend = queue.get_stats().trend
    assert trend is not None
    assert trend.seconds_left is None
    assert trend.growth == pytest.approx(2, rel=0.25)


@pytest.mark.parametrize(
    ("samples", "ready", "per_second", "trend"),
    [
        ([], 10, 5, None),
        ([(880, 100)], 0, 5, None),
        ([(1000, 100)], 10, 5, None),
        ([(941, 100)], 10, 5, None),
        ([(399, 100)], 10, 5, None),
        ([(1100, 100)], 10, 5, None),
        ([(900, 11)], 10, 5, None),
        ([(900, 10)], 10, 5, None),
        ([(900, 110)], 10, 0, None),
        ([(900, 10_000_002)], 10_000_000, 1, None),
        ([(900, 110)], 10, 5, Trend(10, 5, -1)),
        ([(940, 70)], 10, 5, Trend(10, 5, -1)),
        ([(400, 610)], 10, 5, Trend(10, 5, -1)),
        ([(950, 10), (900, 110), (990, 5)], 10, 5, Trend(10, 5, -1)),
        ([(900, 110), (400, 4000), (600, 3000)], 10, 5, Trend(10, 5, -1)),
        ([(900, 10)], 110, 5, Trend(None, 5, 1)),
        ([(900, 0)], 200, 0, Trend(None, 0, 2)),
    ],
)
def test_a_trend_follows_from_a_sample_that_is_neither_too_young_nor_too_old(
    samples: list[tuple[float, int]], ready: int, per_second: float, trend: Trend | None
) -> None:
    assert backlog_trend(samples, 1000, ready, per_second) == trend


def test_the_remaining_time_of_a_backlog_is_calculated_from_the_rate_at_which_it_shrinks() -> None:
    trend = backlog_trend([(400, 12_600)], 1000, 3600, per_second=33)
    assert trend is not None
    assert trend_words(trend) == "done in about 4 min at 15 tasks/s", (
        "of the 33 that finish, 18 are replaced by new ones"
    )
