"""The lanes of a queue of several shards: which of them may ask, and for whom."""

from __future__ import annotations

from django_fairque.engine.model.outcome import Settled
from django_fairque.engine.sharding.shard_head import Standing, Turns, Window
from django_fairque.engine.sharding.shard_scheduler import Order, Orders
from django_fairque.worker.fetching.fetch_planner import Call, Lane
from django_fairque.worker.fetching.shard_places import Turn
from django_fairque.worker.fetching.slot_budget import GLANCE, Budget
from tests.worker.fetching.planners import answer, lane_of, lease, planned, run_all


def lanes_of(slots: int = 2) -> tuple[Lane, Lane]:
    """Of the two shards of a queue."""
    budget, order = Budget(slots), Order([Turns(2)])
    one, two = (Lane(index, budget, poll=5.0, place=Turn(order, index)) for index in range(2))
    return one, two


def give(
    lane: Lane, call: Call, place: float | None, *, count: int = 1, served_at: float = 0.0, now: float = 0.0
) -> None:
    """The reply of a shard that serves at ``served_at`` and then stands at ``place``."""
    leases = [lease() for _ in range(count)]
    standings = (Standing(place, count),)
    lane.settled(call, Settled(["finished"] * len(call.outcomes), leases, now, None, served_at, standings), now)


class TestShards:
    """Of two the one that stands first is asked, and told where the other one stands."""

    def test_the_one_that_is_behind_is_asked(self) -> None:
        one, two = lanes_of()
        give(one, planned(one, 0.0), 50.0)
        give(two, planned(two, 0.0), 3.0)
        run_all(one)
        run_all(two)
        assert planned(one, 0.01).fetch == 0, "it reports, and that is all"
        call = planned(two, 0.01)
        assert (call.fetch, call.window) == (2, Window(0.0, 50.0))

    def test_the_other_is_looked_at_for_newcomers(self) -> None:
        one, two = lanes_of(slots=9)
        give(one, planned(one, 0.0), 50.0, count=4)
        give(two, planned(two, 0.0), 3.0, count=4)
        one.buffer.clear()  # the slots have them
        two.buffer.clear()
        assert one.plan(GLANCE * 0.9) is None
        assert 0 < one.patience(GLANCE * 0.9) <= GLANCE * 0.1001
        glance = planned(one, GLANCE)
        assert (glance.fetch, glance.outcomes) == (0, [])
        give(one, glance, 50.0, count=0, now=GLANCE)
        assert one.plan(GLANCE * 1.5) is None, "nobody came"
        give(one, planned(one, GLANCE * 2), -1.0, count=0, now=GLANCE * 2)
        assert planned(one, GLANCE * 2).fetch > 0, "somebody came"

    def test_who_is_held_back_is_not_forgotten(self) -> None:
        one, two = lanes_of(slots=9)
        give(two, planned(two, 0.0), 3.0)
        for _ in range(3):
            give(one, planned(one, 0.0), 50.0, count=0)
            assert not one.dry
            assert not one.is_drained
            one.news(woken=True)

    def test_one_that_may_not_steal_has_not_found_everything(self) -> None:
        """Somebody of the list may be on the other shard, so nobody else was asked for."""
        budget, order = Budget(2), Orders(2).of(["a", "b"], "*", {"a": 0, "b": 1}.__getitem__)
        one, two = (Lane(index, budget, poll=5.0, place=Turn(order, index)) for index in range(2))
        call = planned(one, 0.0)
        assert not call.window.steals
        one.settled(call, Settled([], [], 0.0, None, 0.0, (Standing(None, 0.0),)), 0.0)
        assert not one.dry
        assert one.watch(0.0) is None
        assert one.plan(0.0) is None, "the other one comes first"
        call = planned(two, 0.0)
        two.settled(call, Settled([], [], 0.0, None, 0.0, (Standing(None, 0.0), Standing(None, 0.0))), 0.0)
        assert (call.window.steals, two.dry) == (True, True)
        call = planned(one, 0.0)
        assert (call.window.steals, call.fetch) == (True, 2)

    def test_one_that_is_alone_is_not_looked_at(self) -> None:
        lane = lane_of()
        answer(lane, planned(lane, 0.0), [lease(), lease()], 0.0)
        assert lane.plan(10 * GLANCE) is None
