"""When a worker talks to the server, and what it asks for: decisions without I/O, so time is a number here."""

from __future__ import annotations

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.worker.fetching.fetch_planner import HOLD, MANY, STALE, Lane
from django_fairque.worker.fetching.slot_budget import Budget
from tests.worker.fetching.planners import answer, lane_of, lease, planned, run_all


def test_it_begins_by_asking_for_its_free_slots() -> None:
    assert planned(lane_of(4), 0.0).fetch == 4


def test_an_empty_queue_is_watched_and_not_asked_again() -> None:
    lane = lane_of()
    assert lane.watch(0.0) is None
    answer(lane, planned(lane, 0.0), [], 0.0)
    assert lane.plan(0.1) is None
    assert lane.watch(0.1) == 5.0
    assert lane.watch(0.2) is None
    lane.news(woken=True)
    call = planned(lane, 1.0)
    assert (call.fetch, call.woken) == (2, True)


def test_what_is_due_is_looked_for_when_it_is_due() -> None:
    lane = lane_of()
    answer(lane, planned(lane, 0.0), [], 0.0, look_at=0.5)
    assert lane.plan(0.4) is None
    assert 0 < lane.patience(0.4) <= 0.1001
    assert planned(lane, 0.51).fetch == 2


def test_the_last_outcome_is_not_held_back() -> None:
    lane = lane_of(2)
    answer(lane, planned(lane, 0.0), [lease()], 0.0)
    assert lane.plan(0.0) is None
    run_all(lane)
    call = planned(lane, 0.0)
    assert (len(call.outcomes), call.fetch) == (1, 2)


def test_with_long_tasks_only_free_slots_are_filled() -> None:
    lane = lane_of(4)
    now = 0.0
    answer(lane, planned(lane, now), [lease() for _ in range(4)], now)
    for _ in range(40):
        now += 1.0
        run_all(lane, took=1.0)
        call = planned(lane, now)
        assert call.fetch == 4
        answer(lane, call, [lease() for _ in range(call.fetch)], now + 0.001)


def short_tasks(slots: int = 4) -> tuple[Lane, float]:
    """A lane that has learned that tasks take 10 µs."""
    lane, now = lane_of(slots), 0.0
    for _ in range(60):
        now += 0.001
        call = lane.plan(now)
        if call is not None:
            answer(lane, call, [lease() for _ in range(call.fetch)], now + 0.0005)
        run_all(lane, took=0.00001)
    answer(lane, planned(lane, now), [lease() for _ in range(200)], now)
    return lane, now


def end(lane: Lane, number: int) -> None:
    """So many of the buffer run and end."""
    for _ in range(number):
        lane.outcomes.append(Outcome.finish(lane.buffer.popleft(), took=0.00001))  # type: ignore[arg-type]


def test_with_short_tasks_calls_are_made_for_many() -> None:
    lane, now = short_tasks()
    assert 20 <= lane.pace.low < 200
    while len(lane.buffer) > lane.pace.low:
        lane.outcomes.append(Outcome.finish(lane.buffer.popleft(), took=0.00001))  # type: ignore[arg-type]
        if len(lane.buffer) > lane.pace.low:
            assert not lane.wants_notice
            assert lane.plan(now) is None
    call = planned(lane, now)
    assert len(call.outcomes) >= 20
    assert call.fetch > 20


def test_while_a_call_is_on_its_way_another_is_made_for_many_outcomes_only() -> None:
    lane, now = short_tasks()
    end(lane, 100)
    first = planned(lane, now)
    assert not lane.is_calling
    end(lane, MANY - 1)
    assert not lane.is_calling
    assert not lane.wants_notice
    assert lane.plan(now + 2 * HOLD) is None
    assert lane.patience(now + 2 * HOLD) > HOLD  # or the thread that asks would spin
    end(lane, 1)
    assert lane.is_calling
    second = planned(lane, now)
    assert len(second.outcomes) == MANY
    lane.outcomes += first.outcomes
    assert lane.plan(now) is None  # never a third
    del lane.outcomes[:]
    answer(lane, second, [], now)
    answer(lane, first, [], now)
    assert not lane.is_flying


def test_two_calls_ask_together_for_what_there_is_room_for() -> None:
    lane, now = short_tasks()
    running = list(lane.buffer)
    end(lane, 100)
    first = planned(lane, now)
    end(lane, 100)
    second = planned(lane, now)
    assert first.fetch > 0
    assert second.fetch > 0
    room = lane.pace.ahead + 4  # slots
    assert first.fetch + second.fetch <= room
    answer(lane, second, [lease() for _ in range(second.fetch)], now)
    answer(lane, first, [lease() for _ in range(first.fetch)], now)
    assert len(lane.buffer) <= room
    assert lane.held == len(running) - 200 + first.fetch + second.fetch


def test_a_lane_is_not_done_before_its_last_answer() -> None:
    lane, now = short_tasks()
    end(lane, 100)
    first = planned(lane, now)
    lane.stopping = lane.is_suspect = True
    end(lane, MANY)
    second = planned(lane, now)
    assert second.fetch == 0
    lane.buffer.clear()
    answer(lane, second, [], now)
    lane.held = 0
    assert not lane.is_done
    assert not lane.is_lost
    answer(lane, first, [lease()], now)
    assert not lane.is_done
    last = planned(lane, now)
    assert [outcome.kind for outcome in last.outcomes] == ["release"]
    answer(lane, last, [], now)
    assert lane.is_done
    assert lane.is_lost


def test_outcomes_of_a_second_call_that_failed_go_with_the_next() -> None:
    lane, now = short_tasks()
    end(lane, 100)
    first = planned(lane, now)
    end(lane, MANY)
    second = planned(lane, now)
    lane.failed(second, is_known=True)
    assert not lane.is_suspect
    answer(lane, first, [], now)
    again = planned(lane, now)
    assert again.outcomes[:MANY] == second.outcomes
    answer(lane, again, [], now)
    assert lane.held == len(lane.buffer)


def test_an_outcome_does_not_wait_behind_a_full_buffer() -> None:
    lane, now = short_tasks()
    lane.outcomes.append(Outcome.finish(lane.buffer.popleft()))  # type: ignore[arg-type]
    assert lane.plan(now) is None
    assert len(planned(lane, now + HOLD).outcomes) == 1


def test_what_lies_in_the_buffer_for_long_is_given_back() -> None:
    lane, now = short_tasks()
    waiting = len(lane.buffer)
    call = planned(lane, now + STALE + 0.01)
    assert {outcome.kind for outcome in call.outcomes} == {"release"}
    assert len(call.outcomes) == waiting
    assert not lane.buffer


def test_a_newcomer_goes_before_the_buffer() -> None:
    lane, now = short_tasks()
    end(lane, len(lane.buffer) - lane.pace.low)
    new, old = lease(user="bob"), lease(user="ann")
    answer(lane, planned(lane, now), [old, new], now)
    assert lane.buffer[0] is new
    assert lane.buffer[-1] is old


def test_a_batch_waits_until_it_is_full_or_time_is_up() -> None:
    lane = lane_of(2, batch_of=lambda name: (3, 0.5) if name == "b" else None)
    answer(lane, planned(lane, 0.0), [lease("b"), lease("b")], 0.0)
    assert not lane.buffer
    call = planned(lane, 0.1)
    assert call.fetch == 3  # both slots are free, and the batch lacks one
    answer(lane, call, [lease("b"), lease("b"), lease("x")], 0.1)
    assert sorted(len(work) if isinstance(work, list) else 1 for work in lane.buffer) == [1, 3]
    lane.plan(0.59)
    assert len(lane.buffer) == 2
    lane.plan(0.61)
    assert [len(work) if isinstance(work, list) else 1 for work in lane.buffer][-1] == 1
    assert len(lane.buffer) == 3


def test_a_batch_may_gather_for_longer_than_a_lease_may_lie_in_the_buffer() -> None:
    lane = lane_of(2, batch_of=lambda name: (3, 3 * STALE) if name == "b" else None)
    answer(lane, planned(lane, 0.0), [lease("b"), lease("b")], 0.0)
    answer(lane, planned(lane, 0.0), [], 0.0)
    assert lane.plan(2 * STALE) is None
    assert lane.plan(3 * STALE) is None
    assert [len(work) for work in lane.buffer if isinstance(work, list)] == [2]
    assert len(planned(lane, 4 * STALE + 0.01).outcomes) == 2, "from then on it lies there as any other"


def test_a_failed_call_is_made_again_and_nothing_fetched_until_it_is_known_what_was() -> None:
    lane = lane_of(2)
    answer(lane, planned(lane, 0.0), [lease()], 0.0)
    run_all(lane)
    call = planned(lane, 0.0)
    lane.failed(call, is_known=False)
    again = planned(lane, 1.0)
    assert (again.outcomes, again.fetch) == (call.outcomes, 0)
    answer(lane, again, [], 1.0)
    assert lane.is_suspect
    assert lane.plan(1.0) is None
    lane.is_suspect = False
    assert planned(lane, 2.0).fetch == 2


def test_stopping_gives_back_what_has_not_begun() -> None:
    lane = lane_of(2, batch_of=lambda name: (3, 0.5) if name == "b" else None)
    answer(lane, planned(lane, 0.0), [lease("b"), lease("x")], 0.0)
    lane.stopping = True
    call = planned(lane, 0.0)
    assert ([outcome.kind for outcome in call.outcomes], call.fetch) == (["release"] * 2, 0)
    assert lane.held == 0


def test_a_worker_for_some_pauses_while_there_is_work_for_others_only() -> None:
    lane = lane_of(selective=True)
    answer(lane, planned(lane, 0.0), [], 0.0)
    now, looks = 0.0, 0
    while now < 1.0:
        if lane.watch(now) is not None:
            looks += 1
            lane.news(woken=True)  # the marker is there again at once
            answer(lane, planned(lane, now), [], now)
        now += 0.001
    assert 4 <= looks <= 12


def test_a_slot_goes_to_the_queue_that_has_fewer() -> None:
    budget = Budget(4)
    first, second = (Lane(index, budget, poll=5.0) for index in range(2))
    answer(first, planned(first, 0.0), [lease(), lease(), lease(), lease()], 0.0)
    assert second.plan(0.0) is None
    running = [first.buffer.popleft() for _ in range(4)]
    first.outcomes += [Outcome.finish(work) for work in running[:2] if isinstance(work, Lease)]
    assert planned(first, 1.0).fetch == 0
    assert planned(second, 1.0).fetch == 2


def test_a_burst_ends_only_when_every_queue_was_empty_after_the_last_task() -> None:
    budget = Budget(2, burst=True)
    first, second = (Lane(index, budget, poll=5.0) for index in range(2))
    for _ in range(2):
        answer(second, planned(second, 0.0), [], 0.0)
    assert not budget.is_drained
    answer(first, planned(first, 0.0), [lease()], 0.0)
    assert second.plan(0.5) is None
    run_all(first)
    for lane in (first, first, second, second):
        assert not budget.is_drained
        answer(lane, planned(lane, 1.0), [], 1.0)
    assert budget.is_drained


def test_a_quiet_lane_gives_back_what_has_not_begun_and_asks_for_nothing_until_it_is_called() -> None:
    lane = lane_of(2)
    answer(lane, planned(lane, 0.0), [lease(), lease()], 0.0)
    running = lane.buffer.popleft()
    lane.be_quiet(is_quiet=True)
    call = planned(lane, 0.1)
    assert ([outcome.kind for outcome in call.outcomes], call.fetch) == (["release"], 0)
    answer(lane, call, [], 0.1)
    assert lane.plan(5.0) is None
    assert lane.watch(5.0) is None
    assert not isinstance(running, list)
    lane.outcomes.append(Outcome.finish(running, took=1.0))
    call = planned(lane, 5.1)
    assert call.fetch == 0
    answer(lane, call, [], 5.1)
    lane.be_quiet(is_quiet=False)
    assert planned(lane, 5.2).fetch == 2
