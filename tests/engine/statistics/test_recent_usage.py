"""Worker time and waits of a user in the last hour. The tests give the time of each call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.queue_stats import LastHour, Percentiles, total_usage, wait_bucket_middle
from tests.counting import commands
from tests.engine.conftest import pop, sweep_all, task

HOUR = 3600.0
NINE = 2_000_016_000.0 - 2_000_016_000.0 % HOUR
"""The beginning of an hour by the clock."""


def work(queue: FairQueue, at: float, *, waited: float = 0.0, took: float = 0.0, user: str = "ann") -> None:
    """One task that starts at a moment, in seconds after nine, having waited."""
    queue.push(task(user), now=NINE + at - waited)
    queue.finish(pop(queue, NINE + at, users=[user]), took=took, now=NINE + at)


def had(queue: FairQueue, at: float, user: str = "ann") -> LastHour:
    return queue.user(user).stats(now=NINE + at).last_hour


def test_an_unknown_user_has_no_recent_usage(queue: FairQueue) -> None:
    assert had(queue, 0, "nobody") == LastHour(0.0, Percentiles())


def test_the_last_hour_sums_worker_time_and_waits_of_the_current_clock_hour(queue: FairQueue) -> None:
    for second in range(10):
        work(queue, 100 + second, took=2.5)
    found = had(queue, 200)
    assert found.busy_seconds == 25
    assert found.wait.count == 10


def test_the_hour_before_counts_in_proportion_to_the_last_sixty_minutes(queue: FairQueue) -> None:
    for second in range(8):
        work(queue, second, took=3)
    assert had(queue, HOUR - 1).busy_seconds == 24
    assert had(queue, HOUR).busy_seconds == 24
    assert had(queue, 1.25 * HOUR).busy_seconds == 18
    assert had(queue, 1.25 * HOUR).wait.count == 6
    assert had(queue, 1.75 * HOUR).busy_seconds == 6
    assert had(queue, 2 * HOUR) == LastHour(0.0, Percentiles())
    assert had(queue, 100 * HOUR) == LastHour(0.0, Percentiles())


def test_the_last_hour_adds_the_current_clock_hour_and_a_part_of_the_former_one(queue: FairQueue) -> None:
    work(queue, 0, took=40)
    work(queue, HOUR + 1, took=7)
    assert had(queue, 1.5 * HOUR).busy_seconds == 40 / 2 + 7
    assert had(queue, 2.5 * HOUR).busy_seconds == 7 / 2


@pytest.mark.parametrize("later", [2, 3, 4, 27])
def test_an_hour_that_is_over_is_not_added_to(queue: FairQueue, later: int) -> None:
    """Its place was used before: two hours ago, or more."""
    work(queue, 0, waited=5, took=40)
    work(queue, HOUR, waited=5, took=30)
    work(queue, later * HOUR, waited=500, took=1)
    found = had(queue, later * HOUR + 1)
    before = 30 * (1 - 1 / HOUR) if later == 2 else 0
    assert found.busy_seconds == pytest.approx(1 + before)
    assert found.wait.count == (2 if later == 2 else 1)


@pytest.mark.parametrize(
    ("waited", "bucket"),
    [
        *((0, 0), (0.009_999, 0), (0.01, 1), (0.029_999, 1), (0.03, 2), (0.09, 3)),
        *((1, 5), (60, 8), (3600, 12), (47_829, 14), (47_830, 15), (900_000, 15)),
    ],
)
def test_waits_are_counted_in_buckets(queue: FairQueue, waited: float, bucket: int) -> None:
    """The buckets end at 10 ms, 30 ms, 90 ms, and so on to 13.3 hours."""
    work(queue, 1_000_000, waited=waited)
    found = had(queue, 1_000_000).wait
    assert found == Percentiles(1, wait_bucket_middle(bucket), wait_bucket_middle(bucket), wait_bucket_middle(bucket))
    if 0.01 <= waited < 47_829.69:
        assert waited / 1.8 < found.p50 < waited * 1.8


def test_percentiles_of_a_user_s_waits_are_those_of_the_samples(queue: FairQueue) -> None:
    """Of 20 starts 18 waited for 0.2 s, one for 10 s and one for 5 minutes."""
    for second in range(18):
        work(queue, 2000 + second, waited=0.2)
    work(queue, 2100, waited=10)
    work(queue, 2500, waited=300)
    found = had(queue, 2500).wait
    assert (found.count, found.p50, found.p95, found.p99) == (
        20,
        wait_bucket_middle(3),
        wait_bucket_middle(7),
        wait_bucket_middle(10),
    )


def test_waits_of_the_hour_before_weigh_less(queue: FairQueue) -> None:
    """Four starts after 5 minutes' wait weigh less than three without one when half of their hour is gone."""
    for second in range(4):
        work(queue, 600 + 400 * second, waited=300)
    for second in range(3):
        work(queue, HOUR + 600 + second)
    assert had(queue, HOUR + 603).wait.p50 == wait_bucket_middle(10)
    assert had(queue, 1.5 * HOUR).wait == Percentiles(
        5, wait_bucket_middle(0), wait_bucket_middle(10), wait_bucket_middle(10)
    )


def test_a_released_task_counts_no_worker_time(queue: FairQueue) -> None:
    queue.push(task("ann"), now=NINE)
    queue.release(pop(queue, NINE), now=NINE + 60)
    assert had(queue, 60).busy_seconds == 0


def test_each_user_has_its_own_last_hour(queue: FairQueue) -> None:
    work(queue, 0, took=5)
    work(queue, 1, took=9, user="bob")
    found = queue.user_stats(["ann", "bob"], now=NINE + 2)
    assert [user.last_hour.busy_seconds for user in found] == [5, 9]
    assert total_usage([]) == LastHour()
    both = total_usage(user.last_hour for user in found)
    assert (both.busy_seconds, both.waits) == (14, {0: 2})


def test_a_reader_whose_clock_is_behind_reads_as_of_the_engine_s_time(queue: FairQueue) -> None:
    work(queue, 0, took=5)
    assert queue.user("ann").stats() == replace(queue.user("ann").stats(now=NINE), last_hour=had(queue, 0))
    assert had(queue, -5 * HOUR).busy_seconds == 5


def test_a_new_hour_costs_one_command_more_and_one_for_each_day(queue: FairQueue, redis: Redis) -> None:
    """The commands that store the user's last hour (`test_user_history.py`), and one for the hour of the task's name."""

    def one_task(at: float) -> int:
        return commands(redis, lambda: work(queue, at, took=1))

    one_task(0)
    usual, *others = (one_task(60 * minute) for minute in (1, 2, 3))
    assert others == [usual, usual]
    assert [one_task(hour * HOUR) for hour in (1, 2, 9)] == [usual + 3, usual + 2, usual + 2]


def test_the_usage_of_a_forgotten_user_leaves_no_keys(queue: FairQueue) -> None:
    work(queue, 0, took=5)
    sweep_all(queue, NINE + 2 * HOUR)
    queue.sweep(now=NINE + 2 * HOUR)
    assert queue.users().items == []
    assert had(queue, 0) == LastHour(0.0, Percentiles())
