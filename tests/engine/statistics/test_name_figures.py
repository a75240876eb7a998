"""Figures by task name: the server counts each attempt when it ends the lease."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.task_names import MAX_TASK_NAMES, AttemptTotals
from tests.counting import commands
from tests.engine.conftest import task
from tests.leases import run_attempts


@pytest.mark.parametrize("shards", [1, 3])
def test_attempts_are_counted_by_name_when_their_leases_end(redis: Redis, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=shards))
    assert (queue.task_names(), queue.attempt_totals()) == ([], {})
    run_attempts(queue, "shop.mail", 3, 1, 0.4)
    run_attempts(queue, "shop.pdf", 1, took=8)
    run_attempts(queue, "shop.mail", 7, 1, 0.4)
    mail, pdf = queue.task_names()
    assert (mail.name, mail.attempts, mail.failed, mail.failed_share, mail.retrying) == ("shop.mail", 10, 2, 0.2, 0)
    assert mail.run.p50 == mail.run.p95 == pytest.approx(0.4, rel=0.2)
    assert (pdf.name, pdf.attempts, pdf.run.count) == ("shop.pdf", 1, 1)
    assert pdf.run.p50 == pytest.approx(8, rel=0.2)
    assert queue.attempt_totals() == {"shop.mail": AttemptTotals(10, 2), "shop.pdf": AttemptTotals(1, 0)}


def test_each_way_in_which_an_attempt_ends_is_counted(queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([task("a", name="n", max_retries=3) for _ in range(7)], now=now)
    finished, retried, dead, put_off, discarded, released, crashed = queue.pop_batch(7, "w", lease=100, now=now)
    outcomes = [
        Outcome.finish(finished, took=1),
        Outcome.fail(retried, "x", delay=900),
        Outcome.fail(dead, "x", delay=None),
        Outcome.retry(put_off, "x", delay=900),
        Outcome.discard(discarded, "x"),
        Outcome.release(released),
        Outcome.crash(crashed, "x"),
    ]
    queue.settle(outcomes, now=now + 1)
    queue.settle(outcomes, now=now + 1)
    assert queue.attempt_totals() == {"n": AttemptTotals(6, 3)}, "a task that was given back unharmed was no attempt"


def test_counters_stay_when_the_hours_are_gone(queue: FairQueue) -> None:
    now = time.time()
    run_attempts(queue, "a", 5, 2, now=now - 30 * 3600)
    run_attempts(queue, "a", 2, 1, now=now)
    assert queue.attempt_totals() == {"a": AttemptTotals(7, 3)}
    assert [(names.attempts, names.failed) for names in queue.task_names(24)] == [(2, 1)]


def test_the_oldest_hour_by_the_clock_counts_whole(queue: FairQueue) -> None:
    """Otherwise the figures of a queue that began an hour ago shrink while tasks end."""
    now = time.time()
    begin = now // 3600 * 3600
    run_attempts(queue, "a", 1000, now=begin - 3 * 3600 + 1)
    run_attempts(queue, "a", 1000, now=begin - 1)
    run_attempts(queue, "a", 5, now=now)
    assert queue.task_names()[0].attempts == 1005
    assert queue.task_names(2)[0].attempts == 1005
    assert queue.task_names(24)[0].attempts == 2005


def test_the_number_of_task_names_with_figures_is_bounded(queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    for hour in (0, 27):  # after 27 hours the old names make room for new ones
        first = 1000 * hour
        queue.push_batch([task("a", name=f"hostile{first + n}") for n in range(500)], now=now + hour * 3600)
        leases = queue.pop_batch(500, "w", now=now + hour * 3600)
        queue.settle([Outcome.finish(lease, took=0.1) for lease in leases], now=now + hour * 3600)
        run_attempts(queue, leases[0].name, 2, 1, now=now + hour * 3600)
        totals = queue.attempt_totals()
        assert len(totals) == MAX_TASK_NAMES + 1
        assert sum(names.attempts for names in totals.values()) >= 400
        assert sum(f"hostile{first + n}" in totals for n in range(500)) == MAX_TASK_NAMES
        assert redis.hlen(next(redis.scan_iter("*stats:attempts:names"))) == MAX_TASK_NAMES
    assert totals[""].attempts >= 800
    (key,) = redis.scan_iter(f"*stats:attempts:{int(now / 3600) + 27}")
    assert 24 * 3600 < redis.ttl(key) <= 26 * 3600


def test_tasks_that_wait_for_a_retry_are_counted_by_name(queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([task("a", name="flaky", max_retries=3) for _ in range(4)], now=now)
    queue.push_batch([task("a", name="later", execute_after=now + 900) for _ in range(4)], now=now)
    for lease in queue.pop_batch(3, "w", now=now):
        queue.fail(lease, "no", delay=600, now=now)
    (flaky,) = queue.task_names()
    assert (flaky.name, flaky.attempts, flaky.failed_share, flaky.retrying) == ("flaky", 3, 1, 3)


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
    names = ["a:b", "failed:1:b", "\x00\n", "é" * 50, "{x}", "names"]
    for name in names:
        run_attempts(queue, name, 1)
    assert sorted(figures.name for figures in queue.task_names()) == sorted(queue.attempt_totals()) == sorted(names)
    (key,) = redis.scan_iter("*stats:attempts:[0-9]*")
    redis.set(key, "damaged")
    assert queue.task_names() == []
    redis.delete(key)


@pytest.mark.parametrize("shards", [1, 3])
def test_attempts_whose_process_was_killed_count_as_failed(redis: Redis, shards: int) -> None:
    queue, now = FairQueue(redis, config=QueueConfig(shards=shards)), time.time()
    for user in ("ann", "bob", "cid"):
        queue.push(task(user, name="shop.pdf"), now=now)
    (crashed,) = queue.pop_batch(1, "w1", lease=10, now=now)
    assert len(queue.pop_batch(2, "w2", lease=10, now=now)) == 2
    queue.shards[crashed.shard].release_worker("w1", [crashed.token], now=now + 1)
    queue.sweep(now=now + 20)
    (pdf,) = queue.task_names()
    assert (pdf.name, pdf.attempts, pdf.failed) == ("shop.pdf", 3, 3)
    assert pdf.run.p50 > 0.9
    assert queue.attempt_totals() == {"shop.pdf": AttemptTotals(3, 3)}
