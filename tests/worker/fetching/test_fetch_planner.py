"""When a worker talks to the server, and what it asks for: decisions without I/O, so time is a number here."""

from __future__ import annotations

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome, Settled, ShardHead
from django_fairque.engine.sharding.shard_scheduler import FairShardOrder, ShardScheduler, ShardSchedulers, Window
from django_fairque.worker.fetching.fetch_planner import (
    MAX_BUFFERED_SECONDS,
    OUTCOME_FLUSH_SECONDS,
    TURN_CHECK_SECONDS,
    FetchCall,
    FetchPlanner,
    ShardTurn,
)
from django_fairque.worker.fetching.pace import SECOND_CALL_OUTCOMES, Pace
from tests.worker.fetching.planners import answer, budget_of, end, lease, planned, planner_of, run_all, short_tasks


def test_a_new_planner_fetches_for_all_its_free_slots() -> None:
    assert planned(planner_of(4), 0.0).fetch == 4


def test_an_empty_queue_is_not_fetched_from_again_before_a_wait() -> None:
    planner = planner_of()
    assert planner.plan_wait(0.0) is None
    answer(planner, planned(planner, 0.0), [], 0.0)
    assert planner.next_call(0.1) is None
    assert planner.plan_wait(0.1) == 5.0
    assert planner.plan_wait(0.2) is None
    planner.wait_ended(woken=True)
    call = planned(planner, 1.0)
    assert (call.fetch, call.woken) == (2, True)


def test_a_planner_fetches_a_scheduled_task_when_it_is_due() -> None:
    planner = planner_of()
    answer(planner, planned(planner, 0.0), [], 0.0, look_at=0.5)
    assert planner.next_call(0.4) is None
    assert 0 < planner.seconds_until_due(0.4) <= 0.1001
    assert planned(planner, 0.51).fetch == 2


def test_fetches_without_a_result_become_less_frequent_until_one_has_a_result() -> None:
    """Many tasks become due one after the other, and other workers take them."""
    planner, now, looks = planner_of(), 0.0, 0
    answer(planner, planned(planner, now), [], now, look_at=now)
    while now < 1.0:
        now += 0.001
        call = planner.next_call(now)
        if call is not None:
            looks += 1
            answer(planner, call, [], now, look_at=now)
    assert looks <= 15
    answer(planner, planned(planner, now + 0.1), [lease()], now + 0.1, look_at=now)
    run_all(planner)
    answer(planner, planned(planner, now + 0.1), [], now + 0.1, look_at=now)
    assert planner.seconds_until_due(now + 0.1) <= 0.011


def test_a_single_fetch_without_a_result_does_not_delay_the_next() -> None:
    planner = planner_of()
    for now in (0.0, 1.0, 2.0):
        answer(planner, planned(planner, now), [], now, look_at=now + 1.0)
    answer(planner, planned(planner, 3.0), [], 3.0, look_at=3.0)
    assert planner.seconds_until_due(3.0) <= 0.0051


def test_the_last_outcome_is_reported_at_once() -> None:
    planner = planner_of(2)
    answer(planner, planned(planner, 0.0), [lease()], 0.0)
    assert planner.next_call(0.0) is None
    run_all(planner)
    call = planned(planner, 0.0)
    assert (len(call.outcomes), call.fetch) == (1, 2)


def test_only_free_slots_are_filled_if_tasks_are_long() -> None:
    planner = planner_of(4)
    now = 0.0
    answer(planner, planned(planner, now), [lease() for _ in range(4)], now)
    for _ in range(40):
        now += 1.0
        run_all(planner, took=1.0)
        call = planned(planner, now)
        assert call.fetch == 4
        answer(planner, call, [lease() for _ in range(call.fetch)], now + 0.001)


def test_a_call_is_made_for_many_outcomes_if_tasks_are_short() -> None:
    planner, now = short_tasks()
    assert 20 <= planner.pace.low_mark < 200
    while len(planner.buffer) > planner.pace.low_mark:
        planner.outcomes.append(Outcome.finish(planner.buffer.popleft(), took=0.00001))  # type: ignore[arg-type]
        if len(planner.buffer) > planner.pace.low_mark:
            assert not planner.should_notify
            assert planner.next_call(now) is None
    call = planned(planner, now)
    assert len(call.outcomes) >= 20
    assert call.fetch > 20


def test_a_second_call_in_flight_is_made_only_for_many_outcomes() -> None:
    planner, now = short_tasks()
    end(planner, 70)
    first = planned(planner, now)
    assert not planner.is_call_due
    end(planner, SECOND_CALL_OUTCOMES - 1)
    assert not planner.is_call_due
    assert not planner.should_notify
    assert planner.next_call(now + 2 * OUTCOME_FLUSH_SECONDS) is None
    assert (
        planner.seconds_until_due(now + 2 * OUTCOME_FLUSH_SECONDS) > OUTCOME_FLUSH_SECONDS
    )  # or the thread that asks would spin
    end(planner, 1)
    assert planner.is_call_due
    second = planned(planner, now)
    assert len(second.outcomes) == SECOND_CALL_OUTCOMES
    planner.outcomes += first.outcomes
    assert planner.next_call(now) is None  # at most two calls are in flight
    del planner.outcomes[:]
    answer(planner, second, [], now)
    answer(planner, first, [], now)
    assert not planner.pending_calls


def test_a_planner_fetches_three_times_the_tasks_that_end_during_a_call() -> None:
    pace = Pace(8)
    for _ in range(200):
        pace.record_round_trip(0.0005)
        pace.record_ended([Outcome.finish(lease(), took=0.001) for _ in range(8)], 0.001)
    assert pace.prefetch in {17, 18}, "3 × (4 + √4): in half a millisecond four of eight tasks of a millisecond end"
    assert pace.low_mark == 3 * pace.prefetch // 4


def test_the_buffer_stays_small_if_some_tasks_take_long() -> None:
    """A user whose tasks take 0 and 100 ms in turns: one more of these in the buffer delays others by tens of milliseconds."""
    pace = Pace(8)
    for _ in range(200):
        pace.record_round_trip(0.002)
        pace.record_ended([Outcome.finish(lease(), took=took) for took in (0.0, 0.1) * 4], 0.05)
    assert pace.prefetch == 1, "2 × (0.32 + √0.32); with 3 × it would be 2"


def test_a_call_reports_a_third_of_the_leased_tasks() -> None:
    planner, now = short_tasks()
    size = planner.pace.call_size
    assert size == (planner.pace.prefetch + 4) // 3  # 4 is the number of slots
    end(planner, 2 * size + 10)
    first = planned(planner, now)
    assert planner.is_call_due, "for the thread that makes the second call"
    second = planned(planner, now)
    assert [len(call.outcomes) for call in (first, second)] == [size, size]
    assert [call.fetch for call in (first, second)] == [size, size]
    assert planner.next_call(now) is None
    answer(planner, first, [lease() for _ in range(size)], now)
    end(planner, len(planner.buffer))
    assert len(planned(planner, now).outcomes) == size


def test_a_call_reports_all_ended_tasks_if_slots_outnumber_prefetched_tasks() -> None:
    """Coroutines that end together: their slots must not wait for a second call."""
    pace = Pace(150)
    for _ in range(100):
        pace.record_round_trip(0.001)
        pace.record_ended([Outcome.finish(lease(), took=0.1) for _ in range(150)], 0.1)
    assert 0 < pace.prefetch < 150
    assert pace.call_size == 300


def test_outcomes_of_a_batch_are_reported_together() -> None:
    planner, now = planner_of(8, batch_limits=lambda _: (100, 0.0)), 0.0
    for _ in range(40):
        now += 0.002
        call = planned(planner, now)
        answer(planner, call, [lease() for _ in range(200 if call.fetch else 0)], now + 0.001)
        planner.next_call(now + 0.001)
        run_all(planner, took=0.00001)
        if planner.pending_calls:
            answer(planner, planner.pending_calls[0], [], now + 0.001)
    assert planner.pace.prefetch > 8
    assert len(planned(planner, now + 0.002).outcomes) >= 200


def test_a_worker_that_stops_reports_all_outcomes_at_once() -> None:
    planner, now = short_tasks()
    end(planner, 200)
    planner.is_stopping = True
    assert len(planned(planner, now).outcomes) == 200


def test_two_calls_in_flight_request_no_more_tasks_than_fit() -> None:
    planner, now = short_tasks()
    running = list(planner.buffer)
    end(planner, 70)
    first = planned(planner, now)
    end(planner, 70)
    second = planned(planner, now)
    assert first.fetch > 0
    assert second.fetch > 0
    room = planner.pace.prefetch + 4  # 4 is the number of slots
    assert first.fetch + second.fetch <= room
    answer(planner, second, [lease() for _ in range(second.fetch)], now)
    answer(planner, first, [lease() for _ in range(first.fetch)], now)
    assert len(planner.buffer) <= room
    assert planner.held == len(running) - 140 + first.fetch + second.fetch


def test_a_planner_is_not_done_before_its_last_reply() -> None:
    planner, now = short_tasks()
    end(planner, 70)
    first = planned(planner, now)
    planner.is_stopping = planner.is_out_of_sync = True
    end(planner, SECOND_CALL_OUTCOMES)
    second = planned(planner, now)
    assert second.fetch == 0
    planner.buffer.clear()
    answer(planner, second, [], now)
    planner.held = 0
    assert not planner.is_done
    assert not planner.must_reconcile
    answer(planner, first, [lease()], now)
    assert not planner.is_done
    last = planned(planner, now)
    assert [outcome.kind for outcome in last.outcomes] == ["release"]
    answer(planner, last, [], now)
    assert planner.is_done
    assert planner.must_reconcile


def test_outcomes_of_a_second_call_that_failed_go_with_the_next() -> None:
    planner, now = short_tasks()
    end(planner, 70)
    first = planned(planner, now)
    end(planner, SECOND_CALL_OUTCOMES)
    second = planned(planner, now)
    planner.call_failed(second, is_known=True)
    assert not planner.is_out_of_sync
    answer(planner, first, [], now)
    again = planned(planner, now)
    assert again.outcomes[:SECOND_CALL_OUTCOMES] == second.outcomes
    answer(planner, again, [], now)
    assert planner.held == len(planner.buffer)


def test_an_outcome_does_not_wait_behind_a_full_buffer() -> None:
    planner, now = short_tasks()
    planner.outcomes.append(Outcome.finish(planner.buffer.popleft()))  # type: ignore[arg-type]
    assert planner.next_call(now) is None
    assert len(planned(planner, now + OUTCOME_FLUSH_SECONDS).outcomes) == 1


def test_tasks_that_stay_in_the_buffer_for_long_are_released() -> None:
    planner, now = short_tasks()
    waiting = len(planner.buffer)
    call = planned(planner, now + MAX_BUFFERED_SECONDS + 0.01)
    assert {outcome.kind for outcome in call.outcomes} == {"release"}
    assert len(call.outcomes) == waiting
    assert not planner.buffer


def test_a_newcomer_starts_before_buffered_tasks() -> None:
    planner, now = short_tasks()
    end(planner, len(planner.buffer) - planner.pace.low_mark)
    new, old = lease(user="bob"), lease(user="ann")
    answer(planner, planned(planner, now), [old, new], now)
    assert planner.buffer[0] is new
    assert planner.buffer[-1] is old


def test_a_batch_starts_when_it_is_full_or_its_wait_is_over() -> None:
    planner = planner_of(2, batch_limits=lambda name: (3, 0.5) if name == "b" else None)
    answer(planner, planned(planner, 0.0), [lease("b"), lease("b")], 0.0)
    assert not planner.buffer
    call = planned(planner, 0.1)
    assert call.fetch == 3  # both slots are free, and the batch lacks one
    answer(planner, call, [lease("b"), lease("b"), lease("x")], 0.1)
    assert sorted(len(work) if isinstance(work, list) else 1 for work in planner.buffer) == [1, 3]
    planner.next_call(0.59)
    assert len(planner.buffer) == 2
    planner.next_call(0.61)
    assert [len(work) if isinstance(work, list) else 1 for work in planner.buffer][-1] == 1
    assert len(planner.buffer) == 3


def test_a_batch_may_wait_longer_than_the_limit_of_the_buffer() -> None:
    planner = planner_of(2, batch_limits=lambda name: (3, 3 * MAX_BUFFERED_SECONDS) if name == "b" else None)
    answer(planner, planned(planner, 0.0), [lease("b"), lease("b")], 0.0)
    answer(planner, planned(planner, 0.0), [], 0.0)
    assert planner.next_call(2 * MAX_BUFFERED_SECONDS) is None
    assert planner.next_call(3 * MAX_BUFFERED_SECONDS) is None
    assert [len(work) for work in planner.buffer if isinstance(work, list)] == [2]
    assert len(planned(planner, 4 * MAX_BUFFERED_SECONDS + 0.01).outcomes) == 2, (
        "from then on it lies there as any other"
    )


def test_a_failed_call_is_repeated_before_the_next_fetch() -> None:
    planner = planner_of(2)
    answer(planner, planned(planner, 0.0), [lease()], 0.0)
    run_all(planner)
    call = planned(planner, 0.0)
    planner.call_failed(call, is_known=False)
    again = planned(planner, 1.0)
    assert (again.outcomes, again.fetch) == (call.outcomes, 0)
    answer(planner, again, [], 1.0)
    assert planner.is_out_of_sync
    assert planner.next_call(1.0) is None
    planner.is_out_of_sync = False
    assert planned(planner, 2.0).fetch == 2


def test_a_stopping_planner_releases_unstarted_tasks() -> None:
    planner = planner_of(2, batch_limits=lambda name: (3, 0.5) if name == "b" else None)
    answer(planner, planned(planner, 0.0), [lease("b"), lease("x")], 0.0)
    planner.is_stopping = True
    call = planned(planner, 0.0)
    assert ([outcome.kind for outcome in call.outcomes], call.fetch) == (["release"] * 2, 0)
    assert planner.held == 0


def test_a_worker_for_some_users_pauses_while_only_others_have_work() -> None:
    planner = planner_of(selective=True)
    answer(planner, planned(planner, 0.0), [], 0.0)
    now, looks = 0.0, 0
    while now < 1.0:
        if planner.plan_wait(now) is not None:
            looks += 1
            planner.wait_ended(woken=True)  # the marker is there again at once
            answer(planner, planned(planner, now), [], now)
        now += 0.001
    assert 4 <= looks <= 12


def test_a_free_slot_goes_to_the_queue_with_fewer_slots() -> None:
    budget = budget_of(4)
    first, second = (FetchPlanner(index, budget) for index in range(2))
    answer(first, planned(first, 0.0), [lease(), lease(), lease(), lease()], 0.0)
    assert second.next_call(0.0) is None
    running = [first.buffer.popleft() for _ in range(4)]
    first.outcomes += [Outcome.finish(work) for work in running[:2] if isinstance(work, Lease)]
    assert planned(first, 1.0).fetch == 0
    assert planned(second, 1.0).fetch == 2


def test_a_burst_ends_only_when_every_queue_was_empty_after_the_last_task() -> None:
    budget = budget_of(2, burst=True)
    first, second = (FetchPlanner(index, budget) for index in range(2))
    for _ in range(2):
        answer(second, planned(second, 0.0), [], 0.0)
    assert not budget.is_everything_empty
    answer(first, planned(first, 0.0), [lease()], 0.0)
    assert second.next_call(0.5) is None
    run_all(first)
    for planner in (first, first, second, second):
        assert not budget.is_everything_empty
        answer(planner, planned(planner, 1.0), [], 1.0)
    assert budget.is_everything_empty


def test_a_draining_planner_releases_unstarted_tasks() -> None:
    planner = planner_of(2)
    answer(planner, planned(planner, 0.0), [lease(), lease()], 0.0)
    running = planner.buffer.popleft()
    planner.set_draining(is_draining=True)
    call = planned(planner, 0.1)
    assert ([outcome.kind for outcome in call.outcomes], call.fetch) == (["release"], 0)
    answer(planner, call, [], 0.1)
    assert planner.next_call(5.0) is None
    assert planner.plan_wait(5.0) is None
    assert not isinstance(running, list)
    planner.outcomes.append(Outcome.finish(running, took=1.0))
    call = planned(planner, 5.1)
    assert call.fetch == 0
    answer(planner, call, [], 5.1)
    planner.set_draining(is_draining=False)
    assert planned(planner, 5.2).fetch == 2


def test_a_task_in_a_separate_process_takes_a_slot_of_its_fetcher() -> None:
    planner = planner_of(3)
    planner.separate = {1, 2}
    assert planned(planner, 0.0).fetch == 1


def test_a_planner_without_a_free_slot_fetches_no_task() -> None:
    planner = planner_of()
    planner.separate = {1, 2}
    assert planner.next_call(0.0) is None
    planner.separate_ended([0])  # task 0 belongs to another process
    assert planner.next_call(0.0) is None
    planner.separate_ended([1])
    assert planned(planner, 0.0).fetch == 1


def planners_of(slots: int = 2) -> tuple[FetchPlanner, FetchPlanner]:
    """Return the planners of the two shards of a queue."""
    budget, order = budget_of(slots), ShardScheduler([FairShardOrder(2)])
    one, two = (FetchPlanner(index, budget, turn=ShardTurn(order, index)) for index in range(2))
    return one, two


def planners_after_a_round() -> tuple[FetchPlanner, FetchPlanner]:
    """Return the planners of two shards after one task of each has ended. The second shard is behind."""
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
    """Tasks are fetched from the shard that is behind, up to the position of the other shard."""

    def test_the_shard_that_is_behind_is_fetched_from(self) -> None:
        one, two = planners_after_a_round()
        assert planned(one, 0.01).fetch == 0, "the call only reports"
        call = planned(two, 0.01)
        assert (call.fetch, call.window) == (2, Window(0.0, 50.0))

    def test_the_other_shard_is_checked_for_newcomers(self) -> None:
        one, two = planners_of(slots=9)
        give(one, planned(one, 0.0), 50.0, count=4)
        give(two, planned(two, 0.0), 3.0, count=4)
        one.buffer.clear()  # the slots have taken the leases
        two.buffer.clear()
        assert one.next_call(TURN_CHECK_SECONDS * 0.9) is None
        assert 0 < one.seconds_until_due(TURN_CHECK_SECONDS * 0.9) <= TURN_CHECK_SECONDS * 0.1001
        glance = planned(one, TURN_CHECK_SECONDS)
        assert (glance.fetch, glance.outcomes) == (0, [])
        give(one, glance, 50.0, count=0, now=TURN_CHECK_SECONDS)
        assert one.next_call(TURN_CHECK_SECONDS * 1.5) is None, "nobody came"
        give(one, planned(one, TURN_CHECK_SECONDS * 2), -1.0, count=0, now=TURN_CHECK_SECONDS * 2)
        assert planned(one, TURN_CHECK_SECONDS * 2).fetch > 0, "somebody came"

    def test_a_shard_without_a_turn_is_fetched_from_later(self) -> None:
        one, two = planners_of(slots=9)
        give(two, planned(two, 0.0), 3.0)
        for _ in range(3):
            give(one, planned(one, 0.0), 50.0, count=0)
            assert not one.exhausted
            assert not one.is_empty
            one.wait_ended(woken=True)

    def test_a_shard_is_not_exhausted_after_a_call_for_the_users_of_a_list_only(self) -> None:
        """Somebody of the list may be on the other shard, so nobody else was asked for."""
        budget, order = budget_of(2), ShardSchedulers(2).get_scheduler(["a", "b"], "*", {"a": 0, "b": 1}.__getitem__)
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

    def test_a_single_shard_is_not_checked_for_newcomers(self) -> None:
        planner = planner_of()
        answer(planner, planned(planner, 0.0), [lease(), lease()], 0.0)
        assert planner.next_call(10 * TURN_CHECK_SECONDS) is None
