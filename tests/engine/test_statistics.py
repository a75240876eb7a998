"""The figures are what happened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.histograms import Percentiles, percentiles

from .conftest import task
from .test_costs import commands

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue import FairQueue


def test_what_happened_in_the_last_hour(queue: FairQueue) -> None:
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
    assert sum(each.pushed for each in stats.minutes) == 4
    assert sum(each.finished for each in stats.minutes) == 3
    assert sum(each.dead for each in stats.minutes) == sum(each.failed for each in stats.minutes) == 1
    assert max(each.wait_p95 for each in stats.minutes) > 0.9
    assert stats.dead == {"failed": 1, "expired": 0, "poisoned": 0}
    assert stats.sla.violated == sum(each.violated for each in stats.minutes) >= 1


def test_dependencies(queue: FairQueue) -> None:
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


def test_the_longest_wait_is_found_after_its_promise_was_broken(queue: FairQueue) -> None:
    now = time.time()
    for age in (90, 80, 70):
        queue.push(task("u", 5, sla=1), now=now - age)
    queue.push(task("u"), now=now - 60)
    while queue.sweep(now=now).more:
        pass
    assert queue.get_stats().oldest_wait_seconds == pytest.approx(90, abs=3)


def test_reading_them_costs_the_same_however_much_there_is(queue: FairQueue, redis: Redis) -> None:
    def cost() -> int:
        return commands(redis, queue.get_stats)

    queue.push(task())
    before = cost()
    queue.push_batch([task(f"u{i}") for i in range(2000)])
    assert cost() == before < 100


def test_percentiles_of_nothing() -> None:
    assert percentiles({}) == Percentiles()
