"""Leases that a process passes on: how many may be on their way before it fetches no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.worker.fetching.fetch_planner import MAX_PASSED_ON_SUSPECTS
from tests.worker.fetching.planners import answer, lease, planned, planner_of

if TYPE_CHECKING:
    from django_fairque.worker.fetching.fetch_planner import FetchPlanner


def _fetch_and_pass_on(planner: FetchPlanner, count: int) -> list[int]:
    """Have it fetch as many tasks that it passes on, because they are suspects; returns their tokens."""
    leases = [lease() for _ in range(count)]
    answer(planner, planned(planner, 0.0), [], 0.0)
    for each in leases:
        planner.separate[each.token] = False
    planner.exhausted = False
    return [each.token for each in leases]


def test_with_many_on_their_way_nothing_is_fetched() -> None:
    planner = planner_of()
    tokens = _fetch_and_pass_on(planner, MAX_PASSED_ON_SUSPECTS)
    assert planner.next_call(0.1) is None
    planner.separate_ended([0])
    assert planner.next_call(0.1) is None
    planner.separate_ended(tokens[:1])
    assert planned(planner, 0.1).fetch == 2


def test_tasks_that_take_a_slot_do_not_count() -> None:
    planner = planner_of(2 * MAX_PASSED_ON_SUSPECTS)
    for token in _fetch_and_pass_on(planner, MAX_PASSED_ON_SUSPECTS):
        planner.separate[token] = True
    assert planned(planner, 0.1).fetch == MAX_PASSED_ON_SUSPECTS
