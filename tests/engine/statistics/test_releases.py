"""Attempts by task name and release: which tasks a release made slower, or let fail more often."""

from __future__ import annotations

import random
from collections import Counter
from math import log
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.releases import (
    ReleaseComparison,
    ReleaseFigures,
    compare_releases,
    read_releases,
)
from django_fairque.engine.statistics.task_names import MAX_TASK_NAMES
from tests.counting import counted
from tests.engine.conftest import NOW, task
from tests.leases import run_attempts

if TYPE_CHECKING:
    from redis import Redis

HOUR = 3600


def with_release(redis: Redis, release: str | None, shards: int = 1) -> FairQueue:
    config = QueueConfig(shards=shards)
    config.set_release(release)
    return FairQueue(redis, config=config)


def figures(queue: FairQueue) -> dict[str, dict[str, ReleaseFigures]]:
    return queue._run(read_releases(queue._shards))


def compare(queue: FairQueue, now: float) -> list[ReleaseComparison]:
    return queue._run(compare_releases(queue._shards, now))


@pytest.mark.parametrize("shards", [1, 3])
def test_releases_that_run_at_the_same_time_have_separate_figures(redis: Redis, shards: int) -> None:
    """Random attempts under two releases, against the counts of this test."""
    queues = {release: with_release(redis, release, shards) for release in ("1.10", "v2 é\n=b")}
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    chance = random.Random(7)
    for step in range(40):
        release, name = chance.choice(list(queues)), chance.choice(["export", "mail of\nann", "x=1 2"])
        attempts = chance.randint(1, 9)
        failed = chance.randint(0, attempts)
        run_attempts(queues[release], name, attempts, failed, 0.3, NOW + step)
        before = expected.get((name, release), (0, 0))
        expected[name, release] = before[0] + attempts, before[1] + failed
    found = {
        (name, release): (one.attempts, one.failed)
        for name, releases in figures(queues["1.10"]).items()
        for release, one in releases.items()
    }
    assert found == expected
    for releases in figures(queues["1.10"]).values():
        for one in releases.values():
            assert one.passed == one.attempts - one.failed
            assert one.median == pytest.approx(0.3, rel=0.1)


def test_a_queue_without_a_release_counts_nothing_and_costs_nothing(redis: Redis) -> None:
    queue = with_release(redis, None)
    run_attempts(queue, "export", 3)
    assert (figures(queue), compare(queue, NOW)) == ({}, [])
    assert not list(redis.scan_iter("*stats:releases"))


def test_a_release_costs_two_commands_for_each_task_name_of_a_call(redis: Redis) -> None:
    def cost(queue: FairQueue) -> tuple[int, int]:
        run_attempts(queue, "export", 1, now=NOW)
        queue.push_batch([task("a", name="export") for _ in range(50)], now=NOW)
        outcomes = [Outcome.finish(lease, took=1.0) for lease in queue.pop_batch(50, "w", now=NOW)]
        found = counted(redis, lambda: queue.settle(outcomes, now=NOW))
        return found.get("hget", {"calls": 0})["calls"], found["hset"]["calls"]

    without, released = cost(with_release(redis, None)), cost(with_release(redis, "v1"))
    assert (without[0], released[0], released[1]) == (0, 1, without[1] + 1)


def test_a_slower_release_is_found_with_its_factor(redis: Redis) -> None:
    run_attempts(with_release(redis, "v1.0.0"), "export", 50, took=0.3, now=NOW)
    run_attempts(with_release(redis, "v1.0.0"), "mail", 50, took=0.3, now=NOW)
    queue = with_release(redis, "v1.1.0")
    run_attempts(queue, "mail", 50, took=0.31, now=NOW + HOUR)
    run_attempts(queue, "export", 29, took=1.32, now=NOW + HOUR)
    assert [one.name for one in compare(queue, NOW + HOUR)] == ["mail"], "29 attempts are too few"
    run_attempts(queue, "export", 1, took=1.32, now=NOW + HOUR + 1)
    export, mail = compare(queue, NOW + HOUR + 1)
    assert (export.name, export.is_slower, export.fails_more, mail.is_worse) == ("export", True, False, False)
    assert export.ratio == pytest.approx(4.4, rel=0.2)
    assert (export.before.release, export.since.release, export.since.first_at) == ("v1.0.0", "v1.1.0", NOW + HOUR)
    assert " times slower " in str(export)
    assert str(export).endswith("since v1.1.0 (04:33 UTC)")


def test_a_release_that_becomes_slow_after_weeks_is_found(redis: Redis) -> None:
    run_attempts(with_release(redis, "v1"), "export", 50, took=0.3, now=NOW)
    queue = with_release(redis, "v2")
    for hour in range(8):
        run_attempts(queue, "export", 500, 5, took=0.3, now=NOW + hour * HOUR)
    assert not compare(queue, NOW + 7 * HOUR)[0].is_worse
    for hour in range(300, 303):
        run_attempts(queue, "export", 500, 5, took=1.2, now=NOW + hour * HOUR)
    (found,) = compare(queue, NOW + 302 * HOUR)
    assert found.is_slower
    assert found.now.attempts <= 2_000
    assert found.now.passed == found.now.attempts - found.now.failed


def test_a_release_that_fails_more_is_found(redis: Redis) -> None:
    run_attempts(with_release(redis, "a"), "export", 300, 3, now=NOW)
    queue = with_release(redis, "b")
    run_attempts(queue, "export", 100, 5, now=NOW)
    assert not compare(queue, NOW)[0].is_worse, "4 points more are too few"
    run_attempts(queue, "export", 100, 25, now=NOW)
    (found,) = compare(queue, NOW)
    assert (found.is_slower, found.fails_more) == (False, True)
    assert "15% of the attempts fail (before 1%)" in str(found)


def test_tasks_stay_worse_until_a_better_release_or_the_one_before_runs(redis: Redis) -> None:
    for hour, (release, took) in enumerate([("v1", 0.3), ("v2", 1.2), ("v3", 1.2)]):
        queue = with_release(redis, release)
        run_attempts(queue, "export", 40, took=took, now=NOW + hour * HOUR)
    (found,) = compare(queue, NOW + 2 * HOUR)
    assert (found.before.release, found.since.release, found.now.release) == ("v1", "v2", "v3")
    run_attempts(with_release(redis, "v1"), "export", 1, took=0.3, now=NOW + 2 * HOUR + 60)
    assert compare(queue, NOW + 2 * HOUR + 60)[0].is_worse, "the new release still runs next to the old one"
    run_attempts(with_release(redis, "v1"), "export", 1, took=0.3, now=NOW + 2 * HOUR + 900)
    assert compare(queue, NOW + 2 * HOUR + 900) == [], "only the first release runs"
    run_attempts(with_release(redis, "v4"), "export", 29, took=0.3, now=NOW + 3 * HOUR)
    assert compare(queue, NOW + 3 * HOUR)[0].is_worse, "29 attempts do not show that the new release is better"
    run_attempts(with_release(redis, "v4"), "export", 1, took=0.3, now=NOW + 3 * HOUR)
    assert not compare(queue, NOW + 3 * HOUR)[0].is_worse
    assert compare(queue, NOW + 28 * HOUR) == [], "no attempt has ended for a day"


def test_three_releases_are_kept_and_those_with_few_attempts_are_replaced_first(redis: Redis) -> None:
    for number in range(6):
        attempts = 40 if number == 0 else 5
        run_attempts(with_release(redis, f"v{number}"), "export", attempts, now=NOW + number)
    assert set(figures(with_release(redis, "v5"))["export"]) == {"v0", "v4", "v5"}
    for number in range(6, 10):
        run_attempts(with_release(redis, f"v{number}"), "export", 40, now=NOW + number)
    assert set(figures(with_release(redis, "v9"))["export"]) == {"v7", "v8", "v9"}


def test_an_attempt_that_its_worker_does_not_report_counts_for_the_release_of_that_worker(redis: Redis) -> None:
    old, new = with_release(redis, "old"), with_release(redis, "new")
    old.push_batch([task("ann", name="export") for _ in range(3)], now=NOW)
    new.pop_batch(2, "w1", lease=10, now=NOW)
    new.heartbeat("w1", {"code_version": "new"}, lease=10, now=NOW)
    old.pop_batch(1, "w2", lease=10, now=NOW)
    old.sweep(now=NOW + 20)
    assert {release: one.failed for release, one in figures(old)["export"].items()} == {"new": 2}


def test_releases_of_names_beyond_the_most_and_damaged_figures_are_left_out(redis: Redis) -> None:
    queue = with_release(redis, "v1")
    queue.push_batch([task("a", name=f"hostile{number}") for number in range(150)], now=NOW)
    queue.settle([Outcome.finish(lease, took=0.1) for lease in queue.pop_batch(150, "w", now=NOW)], now=NOW)
    assert len(figures(queue)) == MAX_TASK_NAMES
    run_attempts(queue, "later", 3, now=NOW + 27 * HOUR)
    assert set(figures(queue)) == {"later"}
    (key,) = redis.scan_iter("*stats:releases")
    redis.hset(key, "later", b"\xff 1 2 3\nv1 1 2 x")
    run_attempts(queue, "later", 2, now=NOW + 27 * HOUR)
    assert figures(queue)["later"]["v1"].attempts == 2


def test_a_release_opens_one_incident_that_closes_when_the_tasks_are_fast_again(redis: Redis) -> None:
    names = ["export", "mail", "pdf"]
    for name in names:
        run_attempts(with_release(redis, "v1"), name, 40, took=0.1, now=NOW)
    queue = with_release(redis, "v2")
    assert queue.incidents.update(now=NOW) == []
    for name in names[:2]:
        run_attempts(queue, name, 40, took=1, now=NOW + HOUR)
    (opened,) = queue.incidents.update(now=NOW + HOUR)
    assert (opened.kind, opened.incident.alerts) == ("opened", 2)
    assert opened.incident.title == "tasks are slower or fail more since release v2"
    assert opened.incident.first.startswith("export: about 9.5 times slower")
    assert opened.incident.first.endswith("; and 1 more: mail")
    assert queue.incidents.update(now=NOW + HOUR + 900) == [], "nothing is new"
    run_attempts(queue, "pdf", 40, took=1, now=NOW + HOUR)
    (more,) = with_release(redis, None).incidents.update(now=NOW + HOUR + 900)
    assert (more.kind, more.incident.alerts) == ("summary", 3)
    for name in names:
        run_attempts(with_release(redis, "v3"), name, 40, took=0.1, now=NOW + 2 * HOUR)
    (closed,) = queue.incidents.update(now=NOW + 2 * HOUR)
    assert closed.kind == "closed"


def test_a_difference_at_the_limit_does_not_open_and_close_an_incident_again_and_again() -> None:
    before = ReleaseFigures("a", 0, 1, 1000, 0, {60: 1000})
    for buckets, is_worse, has_recovered in ((1, False, True), (2, False, False), (3, True, False)):
        now = ReleaseFigures("b", 0, 1, 1000, 0, {60 + buckets: 1000})
        found = ReleaseComparison("export", before, now, now)
        assert (found.is_worse, found.has_recovered) == (is_worse, has_recovered)


def test_a_large_factor_is_written_with_all_its_digits() -> None:
    before, now = (ReleaseFigures(name, 0, 1, 100, 0, {bucket: 100}) for name, bucket in (("a", 60), ("b", 100)))
    text = "export: about 1,024.0 times slower (36,591 ms, before 36 ms) since b (00:00 UTC)"
    assert str(ReleaseComparison("export", before, now, now)) == text


def random_figures(chance: random.Random, attempts: int, spread: float) -> ReleaseFigures:
    """Return figures of attempts of which a tenth fails, and run times with a lognormal distribution."""
    failed = sum(chance.random() < 0.1 for _ in range(attempts))
    runs = Counter(int(4 * chance.gauss(18, spread / log(2))) for _ in range(attempts - failed))
    return ReleaseFigures("v", 0, 1, attempts, failed, runs)


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_releases_without_a_difference_are_rarely_found_worse(spread: float) -> None:
    chance = random.Random(3)
    pairs = [
        [random_figures(chance, size, spread) for _ in range(2)] for size in (35, 60, 100, 300) for _ in range(250)
    ]
    assert sum(ReleaseComparison("export", one, other, other).is_worse for one, other in pairs) <= 5
