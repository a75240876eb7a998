"""When a lane asks for tasks before there are any: decisions without I/O, as in `test_lane`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.engine.model.outcome import Settled
from django_fairque.worker.fetching.fetch_planner import Lane
from django_fairque.worker.fetching.fetch_thread import Puller
from django_fairque.worker.fetching.slot_budget import Budget
from django_fairque.worker.fetching.wakeup import Bell
from django_fairque.worker.leases.outage import Outages
from django_fairque.worker.options import WorkerOptions
from tests.worker.fetching.planners import answer, lane_of, lease, planned, run_all

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.fetching.fetch_planner import Call


def watched(lane: Lane, now: float) -> None:
    """It has looked, found nothing, and waits."""
    answer(lane, planned(lane, now), [], now)
    assert lane.watch(now) == 5.0


def ahead(lane: Lane, now: float) -> Call:
    call = lane.ask_ahead(now)
    assert call is not None
    return call


def test_who_has_nothing_to_do_asks_before_there_is_anything() -> None:
    lane = lane_of(4)
    assert lane.ask_ahead(0.0) is None, "nobody waits"
    watched(lane, 0.0)
    call = ahead(lane, 0.1)
    assert call.fetch == 2
    assert lane.ask_ahead(0.2) is None, "once"
    call.woken = True
    answer(lane, call, [lease()], 1.0)
    assert len(lane.buffer) == 1
    assert lane.plan(1.0) is None, "it got less than it asked for: there is no more"
    assert lane.watch(1.0) == 5.0


def test_more_than_it_asked_for_is_looked_for_at_once() -> None:
    lane = lane_of(4)
    watched(lane, 0.0)
    call = ahead(lane, 0.1)
    answer(lane, call, [lease(), lease()], 1.0)
    run_all(lane)
    assert planned(lane, 1.0).fetch == 4


def test_who_runs_something_waits_and_does_not_ask() -> None:
    """What it runs may keep the interpreter; others could begin what this one was handed."""
    lane = lane_of(4)
    answer(lane, planned(lane, 0.0), [lease()], 0.0)
    assert lane.watch(0.0) == 5.0
    assert lane.ask_ahead(0.0) is None
    run_all(lane)
    assert lane.ask_ahead(0.1) is None, "what ended is not reported yet"
    answer(lane, planned(lane, 0.1), [], 0.2)
    assert ahead(lane, 0.2).fetch == 2, "the same wait, now that it has nothing to do"


def test_nobody_asks_ahead_for_what_others_could_begin_or_what_is_not_wanted() -> None:
    budget = Budget(4)
    first, second = (Lane(index, budget, poll=5.0) for index in range(2))
    watched(first, 0.0)
    assert first.ask_ahead(0.0) is None, "each of two would be handed some"
    assert second.ask_ahead(0.0) is None
    for change in ("stopping", "is_quiet", "is_suspect"):
        lane = lane_of()
        watched(lane, 0.0)
        setattr(lane, change, True)
        assert lane.ask_ahead(0.0) is None, change
    lane = lane_of()
    answer(lane, planned(lane, 0.0), [], 100.0, look_at=103.0)
    assert lane.watch(100.0) == 5.0
    assert lane.ask_ahead(100.0) is None, "something is due before the wait is over, and may be run then"


def test_news_that_brought_nothing_are_looked_into() -> None:
    lane = lane_of()
    watched(lane, 0.0)
    call = ahead(lane, 0.0)
    call.woken = True
    answer(lane, call, [], 1.0)
    assert planned(lane, 1.0).fetch == 2


def test_what_was_asked_for_ahead_and_may_be_lost_is_given_back_first() -> None:
    lane = lane_of()
    watched(lane, 0.0)
    call = ahead(lane, 0.0)
    lane.is_suspect = True
    assert not lane.is_lost, "it may be bringing something just now"
    lane.failed(call, is_known=False)
    assert lane.is_lost
    lane.is_suspect = False
    watched(lane, 2.0)
    call = ahead(lane, 2.0)
    lane.not_asked()
    assert ahead(lane, 2.0) is not call, "it was too late for the first"


def test_a_lane_that_ends_does_not_wait_for_the_end_of_a_wait() -> None:
    lane = lane_of()
    watched(lane, 0.0)
    ahead(lane, 0.0)
    lane.stopping = True
    assert lane.is_done


@pytest.mark.parametrize("change", ["stopping", "is_quiet"])
def test_what_comes_to_a_lane_that_must_begin_nothing_is_given_back(change: str) -> None:
    lane = lane_of()
    watched(lane, 0.0)
    call = ahead(lane, 0.0)
    setattr(lane, change, True)
    assert lane.settled(call, Settled([], [lease()], 1.0, None), 1.0) == []
    assert not lane.buffer
    assert [outcome.kind for outcome in planned(lane, 1.0).outcomes] == ["release"]


def test_a_lane_that_is_told_to_stop_passes_on_that_there_is_work() -> None:
    lane = lane_of()
    watched(lane, 0.0)
    lane.stopping = True
    lane.news(woken=True)
    assert not lane.is_done
    call = planned(lane, 1.0)
    assert (call.woken, call.fetch) == (True, 0)
    lane.failed(call, is_known=False)
    assert lane.is_done, "others hear of it later: that is no reason to stay"


def test_of_a_wait_that_failed_the_lane_hears_once(queue: FairQueue) -> None:
    """Its place is free when the lane is told of the failure, and may be another wait's when its thread has slept."""
    lane = lane_of()
    watched(lane, 0.0)
    call = ahead(lane, 0.0)
    nobody: Any = None
    puller = Puller(
        *(queue, lane, Bell(), Bell(), nobody, WorkerOptions("w")),
        board=nobody,
        clock=nobody,
        outage=Outages([queue]).of(queue.label),
        reporter=nobody,
        herald=nobody,
        on_change=nobody,
    )
    puller.not_heard(RedisConnectionError("it is away"))
    assert (lane.ahead, lane.is_suspect, lane.is_away) == (None, True, True)
    assert not lane.is_calling, "no news of a wait"
    assert call.outcomes == []
    lane.is_suspect = False
    watched(lane, 2.0)
    puller.not_heard(RedisConnectionError("it is away"))
    assert lane.is_calling, "the wait is over"
