"""Limits on how many of a user's tasks start per unit of time: in any window at most the rate and the burst."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from redis import Redis

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task


def started(queue: FairQueue, now: float, most: int = 1000) -> int:
    return len(queue.pop_batch(most, "w", lease=9e6, now=now))


def push(queue: FairQueue, count: int, now: float = NOW) -> None:
    queue.push_batch([task("a") for _ in range(count)], now=now)


def test_no_minute_has_more_starts_than_the_rate_plus_one(queue: FairQueue) -> None:
    queue.user("a").set_rate("100/m", now=NOW)
    push(queue, 300)
    starts = [number / 10 for number in range(1300) for _ in range(started(queue, NOW + number / 10))]
    assert max(sum(begin <= at <= begin + 60 for at in starts) for begin in starts) <= 101
    assert len(starts) == 217  # 130 s, and nothing was wasted


def test_the_burst_of_a_rate_can_be_set(queue: FairQueue) -> None:
    queue.user("a").set_rate("60/m", burst=10, now=NOW)
    push(queue, 100)
    assert started(queue, NOW) == 10
    assert [started(queue, NOW + second) for second in range(1, 4)] == [1, 1, 1]
    stats = queue.user("a").stats(now=NOW)
    assert (stats.rate, stats.burst) == ("60/60s", 10)
    queue.user("a").set_rate(None, now=NOW)
    stats = queue.user("a").stats(now=NOW)
    assert (stats.rate, stats.burst) == (None, None)


def test_a_change_of_a_rate_keeps_the_used_tokens(queue: FairQueue) -> None:
    user = queue.user("a")
    push(queue, 100)
    user.set_rate("100/m", burst=10, now=NOW)
    assert started(queue, NOW) == 10
    for rate, burst in (("100/m", 10), ("200/m", 10), ("100/m", 1), ("50/h", 10), (None, 1), ("100/m", 10)):
        user.set_rate(rate, burst=burst, now=NOW)
        if rate is not None:
            assert started(queue, NOW) == 0
    assert started(queue, NOW + 0.7) == 1
    user.set_rate("100/m", burst=12, now=NOW + 0.7)
    assert started(queue, NOW + 0.7) == 2


def test_a_smaller_burst_waits_for_used_tokens(queue: FairQueue) -> None:
    push(queue, 100)
    queue.user("a").set_rate("1/s", burst=20, now=NOW)
    assert started(queue, NOW) == 20
    queue.user("a").set_rate("1/s", burst=5, now=NOW)
    assert queue.check_invariants() == []
    assert started(queue, NOW + 15.9) == 0
    assert started(queue, NOW + 16.1) == 1


def test_removing_a_rate_lets_waiting_tasks_start(queue: FairQueue) -> None:
    push(queue, 5)
    queue.user("a").set_rate("1/h", now=NOW)
    assert started(queue, NOW) == 1
    queue.user("a").set_rate(None, now=NOW)
    assert started(queue, NOW) == 4


def test_tasks_started_before_a_rate_was_set_return_no_tokens(queue: FairQueue) -> None:
    push(queue, 50)
    before = queue.pop_batch(10, "w", now=NOW)
    queue.user("a").set_rate("1/m", burst=10, now=NOW + 1)
    assert started(queue, NOW + 1) == 10
    queue.settle([Outcome.release(lease) for lease in before], now=NOW + 2)
    assert started(queue, NOW + 2) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 20_000_000)),
        st.tuples(st.just("start"), st.integers(1, 30)),
        st.tuples(st.just("release"), st.integers(1, 30)),
        st.tuples(st.just("change"), st.sampled_from(["100/m", "7/s", "1/10s", "30/m"]), st.integers(1, 20)),
    ),
    min_size=5,
    max_size=25,
)
PER_SECOND = {"100/m": 100 / 60, "7/s": 7.0, "1/10s": 0.1, "30/m": 0.5}


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(STEPS)
def test_starts_in_any_time_span_stay_within_the_rate_while_rates_change(
    queue: FairQueue, redis: Redis, part: int, steps: list[tuple[str, int] | tuple[str, str, int]]
) -> None:
    """Starts from one moment to another are at most the burst and what the rates allowed in between."""
    redis.flushall()
    push(queue, 400)
    user, at, allowed = queue.user("a"), 0, 0.0
    rate, burst = "100/m", 1
    user.set_rate(rate, now=NOW)
    starts: list[tuple[float, int]] = []  # allowed starts until then, and the burst
    for step in steps:
        now = NOW + at / 1e6
        if step[0] == "wait":
            assert isinstance(step[1], int)
            at += step[1]
            allowed += step[1] / 1e6 * PER_SECOND[rate]
        elif step[0] == "start":
            assert isinstance(step[1], int)
            starts += [(allowed, burst)] * started(queue, now, step[1])
        elif step[0] == "release":
            assert isinstance(step[1], int)
            leases = queue.pop_batch(step[1], "w", now=now)
            queue.settle([Outcome.release(lease) for lease in leases], now=now)
        else:
            _, rate, burst = step  # type: ignore[misc]
            user.set_rate(rate, burst=burst, now=now)
        assert queue.check_invariants() == []
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            window = starts[last][0] - starts[first][0]
            assert last - first + 1 <= starts[last][1] + window + 1e-6
