"""When a planner requests tasks before there are any: decisions without I/O, as in `test_fetch_planner`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.engine.model.outcome import Settled
from django_fairque.worker.fetching.fetch_planner import FetchPlanner
from django_fairque.worker.fetching.fetch_thread import FetchThread
from django_fairque.worker.fetching.queue_context import QueueContext
from tests.worker.fetching.planners import Ignores, answer, budget_of, lease, planned, planner_of, run_all, services_for

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.fetching.fetch_planner import FetchCall


def watched(planner: FetchPlanner, now: float) -> None:
    """Have the planner fetch, get nothing, and wait."""
    answer(planner, planned(planner, now), [], now)
    assert planner.plan_wait(now) == 5.0


def ahead(planner: FetchPlanner) -> FetchCall:
    call = planner.plan_fetch_ahead(0.0)
    assert call is not None
    return call


def test_an_idle_planner_sends_a_fetch_that_waits_for_the_next_push() -> None:
    planner = planner_of(4)
    assert planner.plan_fetch_ahead(0.0) is None, "nobody waits"
    watched(planner, 0.0)
    call = ahead(planner)
    assert call.fetch == 2
    assert planner.plan_fetch_ahead(0.0) is None, "once"
    call.woken = True
    answer(planner, call, [lease()], 1.0)
    assert len(planner.buffer) == 1
    assert planner.next_call(1.0) is None, "the planner got less than it requested, so there are no more tasks"
    assert planner.plan_wait(1.0) == 5.0


def test_a_planner_that_got_tasks_ahead_fetches_for_its_free_slots() -> None:
    planner = planner_of(4)
    watched(planner, 0.0)
    call = ahead(planner)
    answer(planner, call, [lease(), lease()], 1.0)
    run_all(planner)
    assert planned(planner, 1.0).fetch == 4


def test_a_planner_with_a_running_task_requests_no_tasks_ahead() -> None:
    """The running task may block the interpreter, while other workers could begin the requested tasks."""
    planner = planner_of(4)
    answer(planner, planned(planner, 0.0), [lease()], 0.0)
    assert planner.plan_wait(0.0) == 5.0
    assert planner.plan_fetch_ahead(0.0) is None
    run_all(planner)
    assert planner.plan_fetch_ahead(0.0) is None, "the ended task is not reported yet"
    answer(planner, planned(planner, 0.1), [], 0.2)
    assert ahead(planner).fetch == 2, "the same wait, now that it has nothing to do"


def test_no_tasks_are_requested_ahead_by_one_of_two_idle_planners() -> None:
    budget = budget_of(4)
    first, second = (FetchPlanner(index, budget) for index in range(2))
    watched(first, 0.0)
    assert first.plan_fetch_ahead(0.0) is None, "each of two would be handed some"
    assert second.plan_fetch_ahead(0.0) is None
    for change in ("is_stopping", "is_draining", "is_out_of_sync"):
        planner = planner_of()
        watched(planner, 0.0)
        setattr(planner, change, True)
        assert planner.plan_fetch_ahead(0.0) is None, change


@pytest.mark.parametrize("seconds", [0.1, 0.7, 1 / 3, 3.0])
def test_a_wait_for_work_ends_when_the_next_task_is_due(seconds: float) -> None:
    planner = planner_of()
    now = 1234.1
    answer(planner, planned(planner, now), [], now, look_at=now + seconds)
    assert planner.plan_wait(now) == pytest.approx(seconds)
    call = ahead(planner)
    now += seconds
    answer(planner, call, [], now, look_at=now + seconds)
    assert planner.plan_wait(now) == pytest.approx(seconds), "the next one, at once"
    assert ahead(planner).fetch == 2


def test_a_slightly_earlier_due_time_does_not_change_the_wait() -> None:
    """A reply gives the moment as seconds from now, and replies take more or less time to arrive."""
    planner = planner_of()
    answer(planner, planned(planner, 0.0), [lease()], 0.0, look_at=1.0)
    assert planner.plan_wait(0.0) == 1.0
    run_all(planner)
    answer(planner, planned(planner, 0.1), [], 0.2, look_at=1.08)
    assert ahead(planner).fetch == 2


def test_a_wait_is_never_shorter_than_a_tenth_of_a_second() -> None:
    planner = planner_of()
    answer(planner, planned(planner, 0.0), [], 0.0, look_at=0.05)
    assert planner.plan_wait(0.0) == pytest.approx(0.1)
    assert ahead(planner).fetch == 2


def test_no_fetch_is_sent_behind_a_wait_that_ends_after_something_is_due() -> None:
    planner = planner_of(4)
    answer(planner, planned(planner, 0.0), [lease()], 0.0)
    assert planner.plan_wait(0.0) == 5.0
    run_all(planner)
    answer(planner, planned(planner, 0.1), [], 0.2, look_at=1.0)
    assert planner.plan_fetch_ahead(0.0) is None, "due in the middle of the wait"


def test_a_wakeup_without_leases_leads_to_a_fetch() -> None:
    planner = planner_of()
    watched(planner, 0.0)
    call = ahead(planner)
    call.woken = True
    answer(planner, call, [], 1.0)
    assert planned(planner, 1.0).fetch == 2


def test_doubtful_prefetched_leases_are_released_first() -> None:
    planner = planner_of()
    watched(planner, 0.0)
    call = ahead(planner)
    planner.is_out_of_sync = True
    assert not planner.must_reconcile, "the call may be about to return tasks"
    planner.call_failed(call, is_known=False)
    assert planner.must_reconcile
    planner.is_out_of_sync = False
    watched(planner, 2.0)
    call = ahead(planner)
    planner.fetch_ahead = None
    assert ahead(planner) is not call, "the planner makes a new call"


def test_a_planner_that_stops_does_not_wait_for_the_end_of_a_wait() -> None:
    planner = planner_of()
    watched(planner, 0.0)
    ahead(planner)
    planner.is_stopping = True
    assert planner.is_done


@pytest.mark.parametrize("change", ["is_stopping", "is_draining"])
def test_leases_received_while_stopping_are_released(change: str) -> None:
    planner = planner_of()
    watched(planner, 0.0)
    call = ahead(planner)
    setattr(planner, change, True)
    assert planner.call_succeeded(call, Settled([], [lease()], 1.0, None), 1.0) == []
    assert not planner.buffer
    assert [outcome.kind for outcome in planned(planner, 1.0).outcomes] == ["release"]


def test_a_stopping_planner_wakes_another_worker() -> None:
    planner = planner_of()
    watched(planner, 0.0)
    planner.is_stopping = True
    planner.wait_ended(woken=True)
    assert not planner.is_done
    call = planned(planner, 1.0)
    assert (call.woken, call.fetch) == (True, 0)
    planner.call_failed(call, is_known=False)
    assert planner.is_done, "others hear of it later: that is no reason to stay"


def test_a_failed_wait_is_reported_to_the_planner_once(queue: FairQueue) -> None:
    """Its place is free when the planner gets the failure, and may be another wait's when its thread has slept."""
    planner = planner_of()
    watched(planner, 0.0)
    call = ahead(planner)
    ignores: Any = Ignores()
    fetch_thread = FetchThread(QueueContext(queue, planner, ignores, ignores), services_for(queue))
    fetch_thread.wait_failed(RedisConnectionError("it is away"))
    assert (planner.fetch_ahead, planner.is_out_of_sync, planner.has_failed) == (None, True, True)
    assert not planner.is_call_due, "no news of a wait"
    assert call.outcomes == []
    planner.is_out_of_sync = False
    watched(planner, 2.0)
    fetch_thread.wait_failed(RedisConnectionError("it is away"))
    assert planner.is_call_due, "the wait is over"
