"""The figures are what happened."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.queue_stats import Percentiles, SlaStats, percentiles
from tests.counting import commands
from tests.engine.conftest import NOW, pop, push_many, sweep_all, task


def test_the_statistics_of_the_last_hour_count_every_outcome(queue: FairQueue) -> None:
    now = time.time() - 10  # all of it in minutes that have come
    queue.push_batch([task("a", 5), task("b", 2), task(task_id="d", depends_on=[]), task(sla=0.001)], now=now)
    for lease in queue.pop_batch(3, "w", now=now + 1):
        queue.finish(lease, took=0.5, now=now + 2)
    (late,) = queue.pop_batch(1, "w", now=now + 3)
    queue.fail(late, "x", retry=False, now=now + 3)
    stats = queue.get_stats()
    assert stats.wait.count == stats.run.count == 4
    assert stats.run.p50 == pytest.approx(0.5, rel=0.1)
    assert set(stats.wait_by_priority) == {"LOW", "NORMAL", "VERY_HIGH"}
    assert sum(minute.pushed for minute in stats.minutes) == 4
    assert sum(minute.finished for minute in stats.minutes) == 3
    assert sum(minute.dead for minute in stats.minutes) == sum(minute.failed for minute in stats.minutes) == 1
    assert max(minute.wait_p95 for minute in stats.minutes) > 0.9
    assert stats.dead == {"failed": 1, "expired": 0, "poisoned": 0}
    assert stats.sla.violated == sum(minute.violated for minute in stats.minutes) >= 1


def test_the_statistics_count_tasks_that_wait_for_dependencies(queue: FairQueue) -> None:
    now = time.time() - 10  # all of it in minutes that have come
    queue.push_batch(
        [task(task_id="a"), task(depends_on=["a"]), task(depends_on=["a"], task_id="c"), task(depends_on=["c"])],
        now=now,
    )
    dependencies = queue.get_stats().dependencies
    assert (dependencies.deferred, dependencies.edges, dependencies.resolved) == (3, 3, 0)
    (lease,) = queue.pop_batch(9, "w", now=now)
    queue.finish(lease, now=now)
    dependencies = queue.get_stats().dependencies
    assert (dependencies.deferred, dependencies.edges, dependencies.resolved) == (1, 1, 2)
    assert dependencies.resolution.count == 2


def test_the_oldest_wait_is_found_after_its_sla_was_missed(queue: FairQueue) -> None:
    now = time.time()
    for age in (90, 80, 70):
        queue.push(task("u", 5, sla=1), now=now - age)
    queue.push(task("u"), now=now - 60)
    sweep_all(queue, now)
    assert queue.get_stats().oldest_wait_seconds == pytest.approx(90, abs=3)


def test_the_statistics_count_kept_and_missed_sla_and_promotions(queue: FairQueue) -> None:
    now = time.time() - 86_500
    queue.push_batch([task(priority=1), task(priority=2), task(priority=3), task(priority=5, sla=10)], now=now)
    assert replace(queue.get_stats().sla, by_priority={}) == SlaStats(
        0, 0, 0, 0, {"VERY_LOW": 0, "LOW": 0, "NORMAL": 0}
    )
    queue.sweep(now=now + 86_400)
    assert len(queue.pop_batch(9, "w", now=now + 86_401)) == 4
    stats = queue.get_stats()
    assert replace(stats.sla, by_priority={}) == SlaStats(4, 4, 4, 3, {"VERY_LOW": 1, "LOW": 1, "NORMAL": 1})
    assert sum(minute.promoted for minute in stats.minutes) == 3
    assert sum(minute.violated for minute in stats.minutes) == 4


def test_the_statistics_count_ready_tasks_by_priority(queue: FairQueue) -> None:
    queue.push_batch([task(f"u{n}", priority) for priority in (1, 3, 3, 6, 6, 6) for n in range(2)])
    assert queue.get_stats().depth == {"VERY_LOW": 2, "LOW": 0, "NORMAL": 4, "HIGH": 0, "VERY_HIGH": 0, "CRITICAL": 6}


def test_the_statistics_count_dead_letters_by_type_and_by_action(queue: FairQueue) -> None:
    now = time.time() - 1000
    queue.push_batch([task(task_id="a"), task(task_id="b"), task(expires_at=now + 10)], now=now)
    for lease in queue.pop_batch(2, "w", now=now):
        queue.fail(lease, "x", retry=False, now=now)
    sweep_all(queue, now + 11)
    assert queue.get_stats().dead == {"failed": 2, "expired": 1, "poisoned": 0}
    queue.dlq.requeue("a~1")
    queue.dlq.discard("b~1")
    stats = queue.get_stats()
    assert stats.dead == {"failed": 0, "expired": 1, "poisoned": 0}
    assert {name: stats.totals[name] for name in ("dead:failed", "dead:expired", "requeued", "discarded")} == {
        "dead:failed": 2,
        "dead:expired": 1,
        "requeued": 1,
        "discarded": 1,
    }


def test_workers_that_have_died_are_not_counted(queue: FairQueue) -> None:
    """Workers remove each other's records; nobody removes the last one's."""
    now = time.time() - 100
    queue.heartbeat("dead", {}, ttl=60, now=now)
    assert queue.get_stats().workers == 0
    queue.heartbeat("alive", {}, ttl=160, now=now)
    assert queue.get_stats().workers == 1


def test_the_statistics_count_due_tasks(queue: FairQueue) -> None:
    now = time.time() - 100
    queue.user("fast").set_rate("1/m", now=now)
    queue.push_batch([task("fast"), task("fast"), task("late", execute_after=now + 99)], now=now)
    queue.push(task("later", execute_after=now + 10_000), now=now)
    assert queue.get_stats().due == 1
    assert len(queue.pop_batch(9, "w", lease=10, now=now)) == 1
    assert queue.get_stats().due == 3  # its lease has ended, and its user may start the next


def test_users_are_counted_with_and_without_work(queue: FairQueue) -> None:
    queue.push_batch([task("a"), task("b"), task("c", execute_after=4e9)])
    (lease,) = queue.pop_batch(1, "w", ["a"])
    queue.finish(lease)
    stats = queue.get_stats()
    assert (stats.users, stats.users_ready) == (3, 1)


def test_the_totals_have_no_private_counters_of_the_engine(queue: FairQueue) -> None:
    """The queue has had a heartbeat, newcomers, lanes and a clock that was set back, all of which leave counters."""
    now = time.time() - 100
    queue.heartbeat("w", {}, now=now)
    queue.push_batch([task("a"), task("b"), task("c", lane="urgent")], now=now)
    for lease in queue.pop_batch(3, "w", now=now + 1):
        queue.finish(lease, now=now)
    assert queue.get_stats().totals == {"pushed": 3, "started": 3, "started:urgent": 1, "finished": 3}


def test_a_queue_that_was_never_used_has_empty_statistics(queue: FairQueue) -> None:
    stats = queue.get_stats()
    assert (stats.totals, stats.wait, stats.oldest_wait_seconds, len(stats.minutes)) == ({}, Percentiles(), 0.0, 60)


@pytest.mark.parametrize("seconds", [0.000001, 0.00123, 0.5, 7.0, 90_000.0])
def test_percentiles_are_right_to_9_percent(queue: FairQueue, seconds: float) -> None:
    now = time.time() - 100
    queue.push(task(), now=now)
    queue.finish(pop(queue, now), took=seconds, now=now)
    assert queue.get_stats().run.p99 == pytest.approx(seconds, rel=0.095)


def test_percentiles_of_a_histogram_are_the_middles_of_its_buckets() -> None:
    figures = percentiles({0: 90, 40: 8, 80: 2})
    assert figures.count == 100
    assert [round(figure * 1e6) for figure in (figures.p50, figures.p95, figures.p99)] == [1, 1117, 1143480]


def test_reading_the_statistics_takes_the_same_commands_for_any_queue_size(queue: FairQueue, redis: Redis) -> None:
    def cost() -> int:
        return commands(redis, queue.get_stats)

    queue.push(task())
    before = cost()
    queue.push_batch([task(f"u{i}") for i in range(2000)])
    assert cost() == before < 100


def test_histograms_since_the_first_task_only_grow(queue: FairQueue, redis: Redis) -> None:
    long_ago = time.time() - 86_400  # no minute of the last hour has it
    queue.push_batch([task("a"), task("b"), task("c")], now=long_ago)
    one, two, three = queue.pop_batch(3, "w", now=long_ago + 1)
    queue.finish(one, took=0.5, now=long_ago + 2)
    queue.fail(two, "x", took=2, now=long_ago + 2)
    queue.release(three, now=long_ago + 2)
    stats = queue.get_stats()
    assert (stats.wait.count, stats.run.count) == (0, 0)
    assert (sum(stats.waits.buckets.values()), sum(stats.runs.buckets.values())) == (2, 2)  # no released task counts
    assert [stats.waits.sum_seconds, stats.runs.sum_seconds] == pytest.approx([2, 2.5])
    for bucket, seconds in zip(stats.runs.buckets, (0.5, 2), strict=True):
        assert 2 ** (bucket / 4) <= seconds * 1e6 * (1 + 1e-9) < 2 ** ((bucket + 1) / 4)
    assert stats.totals["failed"] == 1
    assert not [name for name in stats.totals if name.startswith(("wait", "run"))]


def test_statistics_can_be_read_without_their_minutes(queue: FairQueue, redis: Redis) -> None:
    queue.push(task())
    stats = queue.get_stats(minutes=0)
    assert (stats.minutes, stats.depth["NORMAL"], stats.totals["pushed"]) == ([], 1, 1)
    assert len(queue.get_stats(minutes=5).minutes) == 5
    assert commands(redis, lambda: queue.get_stats(minutes=0)) <= 25
    for wrong in (-1, 61):
        with pytest.raises(ValueError, match=f"from 0 to 60, got {wrong}"):
            queue.get_stats(minutes=wrong)


def test_percentiles_of_an_empty_histogram_are_empty() -> None:
    assert percentiles({}) == Percentiles()


def test_the_statistics_count_starts_and_ends_of_tasks(queue: FairQueue) -> None:
    push_many(queue, "a", 3)
    first, second, _ = queue.pop_batch(3, "w", now=NOW + 2)
    queue.finish(first, took=0.5, now=NOW + 3)
    queue.fail(second, "x", retry=False, took=0.5, now=NOW + 3)
    stats = queue.get_stats()
    assert stats.states == {
        **dict.fromkeys(("scheduled", "deferred", "queued", "canceled"), 0), "started": 1, "finished": 1, "failed": 1
    }  # fmt: skip
    assert {name: stats.totals[name] for name in ("pushed", "started", "finished", "died")} == {
        "pushed": 3, "started": 3, "finished": 1, "died": 1
    }  # fmt: skip
    user = queue.user("a").stats()
    assert (user.started, user.finished, user.dead, user.busy_seconds) == (3, 1, 1, 1.0)
    assert user.waited_seconds == pytest.approx(4)
