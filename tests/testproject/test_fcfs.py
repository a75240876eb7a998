"""First come, first served, replayed: by hand, and by what must hold for any tasks."""

from __future__ import annotations

import random

import pytest
from library.fcfs import Run, replay


def run(arrived: float, took: float, user: str = "acme", *, waited: float = 0.0) -> Run:
    return Run(user, arrived, arrived + waited, arrived + waited + took)


def waits(runs: list[Run], slots: int, opened: float = 0.0) -> list[float]:
    return [wait for _, wait in replay(runs, slots, opened)]


def test_what_a_run_waited_and_took() -> None:
    one = Run("acme", arrived=10.0, started=12.0, ended=15.0)
    assert (one.waited, one.took) == (2.0, 3.0)


def test_a_clock_that_is_a_little_behind_gives_no_negative_times() -> None:
    one = Run("acme", arrived=10.0, started=9.9, ended=9.8)
    assert (one.waited, one.took) == (0.0, 0.0)


def test_one_slot_serves_one_after_the_other() -> None:
    assert waits([run(0, 2), run(0, 3), run(1, 1)], slots=1) == [0, 2, 4]


def test_two_slots() -> None:
    # Slot one: 0-5, 5-6. Slot two: 0-1, 1-3, 3-4.
    assert waits([run(0, 5), run(0, 1), run(0, 2), run(0, 1), run(0, 1)], slots=2) == [0, 0, 1, 3, 4]


def test_a_slot_that_is_idle_serves_at_once() -> None:
    assert waits([run(0, 1), run(10, 1), run(10.5, 1)], slots=1) == [0, 0, 0.5]


def test_nothing_begins_before_the_slots_open() -> None:
    assert waits([run(0, 1), run(1, 1), run(9, 1)], slots=1, opened=4) == [4, 4, 0]


def test_arrival_decides_not_the_order_given_nor_when_it_really_ran() -> None:
    late, early = run(1, 1, "late"), run(0, 5, "early", waited=100)
    assert [(served.user, wait) for served, wait in replay([late, early], slots=1)] == [("early", 0), ("late", 4)]


def test_tasks_that_came_at_once_keep_their_order() -> None:
    users = [f"user{number}" for number in range(50)]
    assert [served.user for served, _ in replay([run(0, 1, user) for user in users], slots=3)] == users


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_no_slot_runs_two_at_once_nor_idles_while_somebody_waits(slots: int) -> None:
    dice = random.Random(slots)
    runs = [run(dice.randrange(50_000), dice.randrange(1, 2_000)) for _ in range(300)]
    spans = [(served.arrived + wait, served.arrived + wait + served.took, wait) for served, wait in replay(runs, slots)]
    for start, _, wait in spans:
        busy = sum(other_start <= start < end for other_start, end, _ in spans)
        assert busy <= slots
        if wait > 0:
            just_before = sum(other_start < start <= end for other_start, end, _ in spans)
            assert just_before >= slots


def test_there_must_be_a_slot() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        replay([], slots=0)
