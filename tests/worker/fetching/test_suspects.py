"""Leases that a process passes on: each takes a slot until it has ended elsewhere or was given back."""

from __future__ import annotations

from tests.worker.fetching.planners import planned, planner_of


def test_tasks_that_run_in_separate_processes_take_slots_of_the_process_that_fetched_them() -> None:
    planner = planner_of(3)
    planner.separate = {1, 2}
    assert planned(planner, 0.0).fetch == 1


def test_with_all_slots_taken_nothing_is_fetched() -> None:
    planner = planner_of()
    planner.separate = {1, 2}
    assert planner.next_call(0.0) is None
    planner.separate_ended([0])  # another one
    assert planner.next_call(0.0) is None
    planner.separate_ended([1])
    assert planned(planner, 0.0).fetch == 1
