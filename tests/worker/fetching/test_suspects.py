"""Leases that a process passes on: how many may be on their way before it fetches no more."""

from __future__ import annotations

from django_fairque.worker.fetching.fetch_planner import MAX_PASSED_ON_SUSPECTS
from tests.worker.fetching.planners import planned, planner_of

TOKENS = range(1, 1 + MAX_PASSED_ON_SUSPECTS)


def test_with_many_on_their_way_nothing_is_fetched() -> None:
    planner = planner_of()
    planner.separate = dict.fromkeys(TOKENS, False)
    assert planner.next_call(0.0) is None
    planner.separate_ended([0])  # another one
    assert planner.next_call(0.0) is None
    planner.separate_ended(TOKENS[:1])
    assert planned(planner, 0.0).fetch == 2


def test_tasks_that_take_a_slot_do_not_count() -> None:
    planner = planner_of(2 * MAX_PASSED_ON_SUSPECTS)
    planner.separate = dict.fromkeys(TOKENS, True)
    assert planned(planner, 0.0).fetch == MAX_PASSED_ON_SUSPECTS
