"""Figures by task name: what workers record, and what is read of it."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.task_names import AttemptCounts, run_bucket
from tests.counting import commands
from tests.engine.conftest import task


def attempts(number: int, failed: int = 0, took: float | None = None) -> AttemptCounts:
    counts = AttemptCounts()
    for index in range(number):
        counts.add(took, has_failed=index < failed)
    return counts


@pytest.mark.parametrize("shards", [1, 3])
def test_figures_that_workers_record_are_added_up(redis: Redis, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=shards))
    assert queue.task_names() == []
    queue.record_task_names({"shop.mail": attempts(3, 1, 0.2), "shop.pdf": attempts(1, took=8)})
    queue.record_task_names({"shop.mail": attempts(7, 1, 0.4)})
    mail, pdf = queue.task_names()
    assert (mail.name, mail.attempts, mail.failed, mail.failed_share, mail.retrying) == ("shop.mail", 10, 2, 0.2, 0)
    assert mail.run.p50 == mail.run.p95 == pytest.approx(0.4, rel=0.2)
    assert (pdf.name, pdf.attempts, pdf.run.count) == ("shop.pdf", 1, 1)
    assert pdf.run.p50 == pytest.approx(8, rel=0.2)


def test_a_part_of_the_oldest_hour_counts(queue: FairQueue) -> None:
    now = time.time()
    begin, passed = now // 3600 * 3600, now % 3600
    queue.record_task_names({"a": attempts(1000)}, now=begin - 3 * 3600 + 1)
    queue.record_task_names({"a": attempts(1000)}, now=begin - 1)
    queue.record_task_names({"a": attempts(5)}, now=now)
    (hour,) = queue.task_names()
    assert hour.attempts == pytest.approx(5 + 1000 * (1 - passed / 3600), abs=5)
    assert queue.task_names(2)[0].attempts == 1005
    assert queue.task_names(24)[0].attempts == 2005


def test_the_number_of_task_names_with_figures_is_bounded(queue: FairQueue, redis: Redis) -> None:
    for first in range(0, 1000, 100):
        queue.record_task_names({f"hostile{first + index}": attempts(2, 1, 0.1) for index in range(100)})
    queue.record_task_names({"hostile7": attempts(5), "": attempts(1)})
    found = queue.task_names()
    assert len(found) == 101
    assert (found[0].name, found[0].attempts, found[0].failed) == ("", 1801, 900)
    assert (found[1].name, found[1].attempts) == ("hostile7", 7)
    (key,) = redis.scan_iter("*stats:names:*")
    assert 24 * 3600 < redis.ttl(key) <= 26 * 3600
    assert redis.hlen(key) <= 101 * 3 + 1


def test_tasks_that_wait_for_a_retry_are_counted_by_name(queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([task("a", name="flaky", max_retries=3) for _ in range(4)], now=now)
    queue.push_batch([task("a", name="later", execute_after=now + 900) for _ in range(4)], now=now)
    for lease in queue.pop_batch(3, "w", now=now):
        queue.fail(lease, "no", delay=600, now=now)
    (flaky,) = queue.task_names()
    assert (flaky.name, flaky.attempts, flaky.failed_share, flaky.retrying) == ("flaky", 0, 0, 3)


def test_scheduled_tasks_are_counted_by_name_from_a_sample(queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    for _ in range(2):
        queue.push_batch([task("a", name="flaky", max_retries=3) for _ in range(400)], now=now)
        for lease in queue.pop_batch(400, "w", now=now):
            queue.fail(lease, "no", delay=600, now=now)
    queue.push_batch([task("a", name="later", execute_after=now + 900) for _ in range(800)], now=now)
    (flaky,) = queue.task_names()
    assert flaky.retrying == pytest.approx(800, rel=0.35)
    assert commands(redis, lambda: queue.task_names(24)) <= 340 + 200  # the heads of those that failed


def test_hostile_task_names_do_not_affect_others(queue: FairQueue, redis: Redis) -> None:
    names = ["a:b", "run:1", "\x00\n", "é" * 50, "{x}", "names"]
    queue.record_task_names({name: attempts(1, took=1) for name in names})
    assert sorted(figures.name for figures in queue.task_names()) == sorted(names)
    (key,) = redis.scan_iter("*stats:names:*")
    redis.set(key, "damaged")
    assert queue.task_names() == []
    redis.delete(key)


@pytest.mark.parametrize(("seconds", "bucket"), [(0, 0), (1e-9, 0), (1e-6, 0), (2e-6, 2), (1, 39)])
def test_run_times_are_counted_in_buckets(seconds: float, bucket: int) -> None:
    assert run_bucket(seconds) == bucket
    assert attempts(2, took=seconds).runs == Counter({bucket: 2})


@pytest.mark.parametrize("shards", [1, 3])
def test_attempts_whose_process_was_killed_count_as_failed(redis: Redis, shards: int) -> None:
    """No worker reports them: the server counts them when it ends the lease."""
    queue, now = FairQueue(redis, config=QueueConfig(shards=shards)), time.time()
    for user in ("ann", "bob", "cid"):
        queue.push(task(user, name="shop.pdf"), now=now)
    (crashed,) = queue.pop_batch(1, "w1", lease=10, now=now)
    assert len(queue.pop_batch(2, "w2", lease=10, now=now)) == 2
    queue.shards[crashed.shard].release_worker("w1", [crashed.token], now=now + 1)
    queue.sweep(now=now + 20)
    (pdf,) = queue.task_names()
    assert (pdf.name, pdf.attempts, pdf.failed) == ("shop.pdf", 3, 3)
