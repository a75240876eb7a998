"""Slots for a queue's last day, compared with simulated loads."""

from __future__ import annotations

import heapq
import json
import random
import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.statistics.queue_stats import Percentiles, Span
from django_fairque.monitoring.reports.sizing import choose_sizing, measure_sizing
from tests.engine.conftest import task

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.commands.conftest import Run

HOUR = 3600


def hour(attempts: int, mean_run: float, begin: int = 0, seconds: int = HOUR) -> Span:
    """An hour with this load."""
    none = Percentiles()
    return Span(
        begin, seconds, attempts, attempts - attempts // 10, attempts // 10, 0, 0, 0, none, none, mean_run=mean_run
    )


def mean_wait(rate: float, mean_run: float, slots: int, tasks: int = 40_000) -> float:
    """The mean wait in a simulation: tasks come at random, their run times are exponential."""
    randomness = random.Random(1)
    free, now, waits = [0.0] * slots, 0.0, 0.0
    for _ in range(tasks):
        now += randomness.expovariate(rate)
        begin = max(now, heapq.heappop(free))
        waits += begin - now
        heapq.heappush(free, begin + randomness.expovariate(1 / mean_run))
    return waits / tasks


@pytest.mark.parametrize(("attempts", "mean_run"), [(14_400, 0.5), (3_600, 7.0), (180_000, 0.4)])
def test_tasks_wait_for_less_than_their_run_time_with_the_slots_of_the_sizing(attempts: int, mean_run: float) -> None:
    sizing = choose_sizing([hour(attempts, mean_run)])
    assert sizing is not None
    rate = attempts / HOUR
    assert mean_wait(rate, mean_run, sizing.slots) < mean_run
    too_few = int(sizing.slots * 0.6)
    assert mean_wait(rate, mean_run, too_few) > 10 * mean_run


def test_sizing_uses_the_busiest_hour_but_a_current_hour_only_after_ten_minutes() -> None:
    quiet, busy = hour(100, 1.0), hour(7_200, 2.0, begin=HOUR)
    sizing = choose_sizing([quiet, busy, hour(900, 2.0, begin=2 * HOUR, seconds=60)])
    assert sizing is not None
    assert (sizing.begin, sizing.attempts, sizing.rate, sizing.mean_run) == (HOUR, 8_200, 2.0, 2.0)
    assert (sizing.slots, sizing.processes, sizing.shards) == (6, 1, 1)
    largest = choose_sizing([hour(HOUR * 10_000, 0.01)])
    assert largest is not None
    assert (largest.slots, largest.processes, largest.cores, largest.shards) == (143, 18, 2.0, 4)
    assert choose_sizing([]) is None


def test_the_sizing_is_measured_from_the_last_day_of_a_queue(queue: FairQueue, run: Run) -> None:
    assert measure_sizing(queue) is None
    assert "nothing has run in the last 24 hours" in run("fairque_stats", "--sizing")
    begin = time.time() // HOUR * HOUR - 2 * HOUR
    queue.sweep(now=begin)
    for minute in range(60):
        queue.push_batch([task(f"u{number}") for number in range(30)], now=begin + 60 * minute)
        leases = queue.settle([], 30, worker="w", now=begin + 60 * minute).leases
        outcomes = [Outcome.finish(lease, took=4.0) for lease in leases]
        queue.settle(outcomes, worker="w", now=begin + 60 * minute + 59)
    queue.sweep(now=begin + HOUR - 1)
    found = json.loads(run("fairque_stats", "--sizing", "--json"))
    assert (found["begin"], found["attempts"], found["mean_run"], found["slots"]) == (begin, 1800, 4.0, 3)
    assert "slots      3: 70% of them busy in that hour" in run("fairque_stats", "--sizing")
