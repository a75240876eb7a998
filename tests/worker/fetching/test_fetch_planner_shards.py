"""The planners of a queue of several shards: which of them may fetch, and for which users."""

from __future__ import annotations

from django_fairque.engine.model.outcome import Settled, ShardHead
from django_fairque.engine.sharding.shard_scheduler import FairShardOrder, ShardScheduler, ShardSchedulers, Window
from django_fairque.worker.fetching.fetch_planner import (
    TURN_CHECK_SECONDS,
    FetchCall,
    FetchPlanner,
    ShardTurn,
)
from tests.worker.fetching.planners import answer, budget_of, lease, planned, planner_of, run_all


def planners_of(slots: int = 2) -> tuple[FetchPlanner, FetchPlanner]:
    """Of the two shards of a queue."""
    budget, order = budget_of(slots), ShardScheduler([FairShardOrder(2)])
    one, two = (FetchPlanner(index, budget, turn=ShardTurn(order, index)) for index in range(2))
    return one, two


def planners_after_a_round() -> tuple[FetchPlanner, FetchPlanner]:
    """Of two shards that have given a task each, which has ended; the second one is behind."""
    one, two = planners_of()
    give(one, planned(one, 0.0), 50.0)
    give(two, planned(two, 0.0), 3.0)
    run_all(one)
    run_all(two)
    return one, two


def give(
    planner: FetchPlanner,
    call: FetchCall,
    place: float | None,
    *,
    count: int = 1,
    served_at: float = 0.0,
    now: float = 0.0,
) -> None:
    """The reply of a shard that serves at ``served_at`` and then stands at ``place``."""
    leases = [lease() for _ in range(count)]
    standings = (ShardHead(place, count),)
    planner.call_succeeded(
        call, Settled(["finished"] * len(call.outcomes), leases, now, None, served_at, standings), now
    )


class TestShards:
    """Of two the one that stands first is asked, and told where the other one stands."""

    def test_the_shard_that_is_behind_is_fetched_from(self) -> None:
        one, two = planners_after_a_round()
        assert planned(one, 0.01).fetch == 0, "it reports, and that is all"
        call = planned(two, 0.01)
        assert (call.fetch, call.window) == (2, Window(0.0, 50.0))

    def test_the_other_is_looked_at_for_newcomers(self) -> None:
        one, two = planners_of(slots=9)
        give(one, planned(one, 0.0), 50.0, count=4)
        give(two, planned(two, 0.0), 3.0, count=4)
        one.buffer.clear()  # the slots have them
        two.buffer.clear()
        assert one.next_call(TURN_CHECK_SECONDS * 0.9) is None
        assert 0 < one.seconds_until_due(TURN_CHECK_SECONDS * 0.9) <= TURN_CHECK_SECONDS * 0.1001
        glance = planned(one, TURN_CHECK_SECONDS)
        assert (glance.fetch, glance.outcomes) == (0, [])
        give(one, glance, 50.0, count=0, now=TURN_CHECK_SECONDS)
        assert one.next_call(TURN_CHECK_SECONDS * 1.5) is None, "nobody came"
        give(one, planned(one, TURN_CHECK_SECONDS * 2), -1.0, count=0, now=TURN_CHECK_SECONDS * 2)
        assert planned(one, TURN_CHECK_SECONDS * 2).fetch > 0, "somebody came"

    def test_who_is_held_back_is_not_forgotten(self) -> None:
        one, two = planners_of(slots=9)
        give(two, planned(two, 0.0), 3.0)
        for _ in range(3):
            give(one, planned(one, 0.0), 50.0, count=0)
            assert not one.exhausted
            assert not one.is_empty
            one.wait_ended(woken=True)

    def test_one_that_may_not_steal_has_not_found_everything(self) -> None:
        """Somebody of the list may be on the other shard, so nobody else was asked for."""
        budget, order = budget_of(2), ShardSchedulers(2).of(["a", "b"], "*", {"a": 0, "b": 1}.__getitem__)
        one, two = (FetchPlanner(index, budget, turn=ShardTurn(order, index)) for index in range(2))
        call = planned(one, 0.0)
        assert not call.window.steals
        one.call_succeeded(call, Settled([], [], 0.0, None, 0.0, (ShardHead(None, 0.0),)), 0.0)
        assert not one.exhausted
        assert one.plan_wait(0.0) is None
        assert one.next_call(0.0) is None, "the other one comes first"
        call = planned(two, 0.0)
        two.call_succeeded(call, Settled([], [], 0.0, None, 0.0, (ShardHead(None, 0.0), ShardHead(None, 0.0))), 0.0)
        assert (call.window.steals, two.exhausted) == (True, True)
        call = planned(one, 0.0)
        assert (call.window.steals, call.fetch) == (True, 2)

    def test_one_that_is_alone_is_not_looked_at(self) -> None:
        planner = planner_of()
        answer(planner, planned(planner, 0.0), [lease(), lease()], 0.0)
        assert planner.next_call(10 * TURN_CHECK_SECONDS) is None
