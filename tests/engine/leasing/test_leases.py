"""From pop to the end: fencing, retries, dead letters, recovery, retention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import StaleLeaseError, TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, everything, pop, push_many, task


def test_a_task_passes_through_its_states(queue: FairQueue) -> None:
    task_id = queue.push(task("a", payload={"n": 1}, name="x"), now=NOW).task_id
    assert queue.get_task(task_id).state is TaskState.QUEUED
    lease = pop(queue)
    assert (lease.task_id, lease.payload, lease.name, lease.user_id) == (task_id, {"n": 1}, "x", "a")
    assert lease.expires_at == NOW + 30
    started = queue.get_task(task_id)
    assert (started.state, started.started_at, started.worker) == (TaskState.STARTED, NOW, "w")
    queue.finish(lease, {"done": True}, now=NOW + 1)
    ended = queue.get_task(task_id)
    assert (ended.state, ended.result, ended.ended_at) == (TaskState.FINISHED, {"done": True}, NOW + 1)
    assert lease.task.payload == {"n": 1}


def test_a_lease_contains_rare_task_options(queue: FairQueue) -> None:
    queue.push(task("a", task_id="x", run_id="r", expires_at=NOW + 1e6, execute_after=NOW + 5, timeout=7), now=NOW)
    first = pop(queue, NOW + 5)
    queue.fail(first, "x", delay=1, now=NOW + 6)
    lease = pop(queue, NOW + 7)
    assert [delivered.retry_count for delivered in (first, lease)] == [0, 1]
    assert [delivered.delivery for delivered in (first, lease)] == [1, 1]
    for delivered in (first, lease):
        found = delivered.task
        assert (delivered.run_id, delivered.timeout, found.expires_at, found.max_retries) == ("r", 7, NOW + 1e6, 3)
    assert (first.task.execute_after, first.ready_at, lease.ready_at) == (NOW + 5, NOW + 5, NOW + 7)


@pytest.mark.parametrize("sla", ["1e20", "-1e20"])
def test_a_lease_with_an_impossible_sla_is_recognized_as_damaged(queue: FairQueue, redis: Redis, sla: str) -> None:
    queue.push(task("a", task_id="x"), now=NOW)
    redis.hset("fq:{default:0}:task:x", "sla", sla)
    lease = pop(queue)
    redis.hdel("fq:{default:0}:task:x", "sla")
    with pytest.raises(ValueError, match="invalid literal"):
        lease.check()


@pytest.mark.parametrize("call", ["finish", "fail", "release", "set_progress"])
def test_a_call_with_an_outdated_lease_token_changes_nothing(queue: FairQueue, redis: Redis, call: str) -> None:
    push_many(queue, "a", 1)
    old = pop(queue)
    queue.sweep(now=NOW + 31)
    new = pop(queue, NOW + 31)
    assert new.token > old.token
    before = everything(redis)
    arguments: dict[str, list[Any]] = {"fail": ["late"], "set_progress": [1, 2]}
    more = arguments.get(call, [])
    with pytest.raises(StaleLeaseError):
        getattr(queue, call)(old, *more, now=NOW + 31)
    after = everything(redis)
    assert {key: value for key, value in after.items() if b":reply:" not in key} == {
        key: value for key, value in before.items() if b":reply:" not in key
    }
    queue.finish(new, now=NOW + 32)


def test_a_failing_task_waits_longer_before_each_retry_and_ends_as_a_dead_letter(queue: FairQueue) -> None:
    task_id = push_many(queue, "a", 1)[0]
    now = NOW
    for delay in (1, 2, 4):
        assert queue.fail(pop(queue, now), ValueError("no"), now=now) is TaskState.SCHEDULED
        assert queue.get_task(task_id).execute_after == pytest.approx(now + delay)
        now += delay
    assert queue.fail(pop(queue, now), ValueError("no"), now=now) is TaskState.FAILED
    (entry,) = queue.dlq.list().items
    assert (entry.failure_type, entry.reason) == (FailureType.FAILED, "ValueError: no")
    assert [attempt.kind for attempt in entry.retry_history] == ["failed"] * 4
    assert entry.get_age_seconds(now + 5) == 5


def test_a_released_task_returns_to_its_old_position_without_using_a_delivery(queue: FairQueue) -> None:
    for priority in (3, 6):
        ids = push_many(queue, f"u{priority}", 4, priority=priority)
        leases = queue.pop_batch(3, "w", [f"u{priority}"], now=NOW)
        queue.settle([Outcome.release(lease) for lease in leases], now=NOW)
        again = queue.pop_batch(4, "w", [f"u{priority}"], now=NOW)
        assert [lease.task_id for lease in again] == ids
        assert [lease.delivery for lease in again] == [1] * 4


def test_a_settle_fetches_for_the_worker_that_had_the_leases(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 5)
    first, second = queue.pop_batch(2, "w", now=NOW)
    settled = queue.settle([Outcome.finish(first), Outcome.release(second)], fetch=2, now=NOW)
    assert settled.statuses == ["finished", "released"]
    assert [(lease.task_id, lease.worker) for lease in settled.leases] == [(ids[1], "w"), (ids[2], "w")]
    assert queue.get_task(ids[1]).worker == "w"
    third = pop(queue, worker="other")
    outcomes = [Outcome.finish(lease) for lease in (settled.leases[0], third)]
    with pytest.raises(TaskValidationError, match=r"worker must say for whom tasks are fetched: .* of 2 workers"):
        queue.settle(outcomes, fetch=1, now=NOW)
    with pytest.raises(TaskValidationError, match=r"worker must say for whom tasks are fetched: .* of 0 workers"):
        queue.settle([], fetch=1, now=NOW)
    assert queue.settle(outcomes, fetch=1, worker="third", now=NOW).leases[0].worker == "third"


def test_a_task_whose_lease_has_ended_can_start_again(queue: FairQueue) -> None:
    task_id = push_many(queue, "a", 1)[0]
    pop(queue, lease=10)
    assert queue.sweep(now=NOW + 9.9).reaped == 0
    assert queue.sweep(now=NOW + 10).reaped == 1
    lease = pop(queue, NOW + 11)
    assert (lease.task_id, lease.delivery) == (task_id, 2)
    assert [attempt.kind for attempt in queue.history(task_id)] == ["lease_ended"]


def test_renewing_keeps_a_lease(queue: FairQueue) -> None:
    push_many(queue, "a", 2)
    first, second = queue.pop_batch(2, "w", lease=10, now=NOW)
    queue.finish(second, now=NOW)
    assert queue.renew([first, second], lease=10, now=NOW + 9) == [True, False]
    assert queue.sweep(now=NOW + 18).reaped == 0
    assert queue.sweep(now=NOW + 19).reaped == 1


def test_a_task_that_kills_its_workers_is_poisoned_after_max_deliveries(make_queue: MakeQueue) -> None:
    queue = make_queue(max_deliveries=3)
    task_id = push_many(queue, "a", 1)[0]
    now = NOW
    for delivery in (1, 2, 3):
        assert pop(queue, now).delivery == delivery
        queue.sweep(now=now + 31)
        now += 32
    assert queue.pop("w", now=now) is None
    assert queue.dlq.get(f"{task_id}~1").failure_type is FailureType.POISONED


@pytest.mark.parametrize(("own", "starts"), [(1, 1), (2, 2), (7, 7), (None, 3)])
def test_a_task_may_have_its_own_limit_of_deliveries(make_queue: MakeQueue, own: int | None, starts: int) -> None:
    queue = make_queue(max_deliveries=3)
    task_id = queue.push(task("a", max_deliveries=own), now=NOW).task_id
    assert queue.get_task(task_id).max_deliveries == (own or 0)
    now = NOW
    for _ in range(starts):
        lease = pop(queue, now)
        assert lease.task_id == task_id
        queue.release_worker("w", [lease.token], now=now + 1)  # the process has died
        now += 10
    assert queue.pop("w", now=now) is None
    assert queue.dlq.get(f"{task_id}~1").failure_type is FailureType.POISONED


def given_back_by_its_process(queue: FairQueue, lease: Lease, has_begun: bool) -> None:
    queue.release_worker("w", started=[lease.token] if has_begun else [], now=NOW + 1)


def given_back_by_its_slot(queue: FairQueue, lease: Lease, has_begun: bool) -> None:
    queue.settle([Outcome.release(lease, took=0.5 if has_begun else 0.0)], now=NOW + 1)


@pytest.mark.parametrize("give_back", [given_back_by_its_process, given_back_by_its_slot])
@pytest.mark.parametrize(
    ("own", "has_begun", "state"),
    [(1, True, TaskState.FAILED), (1, False, TaskState.QUEUED), (2, True, TaskState.QUEUED)],
)
def test_a_stopped_worker_ends_only_tasks_that_may_start_once(
    queue: FairQueue, give_back: Callable[[FairQueue, Lease, bool], None], own: int, has_begun: bool, state: TaskState
) -> None:
    task_id = queue.push(task("a", max_deliveries=own), now=NOW).task_id
    give_back(queue, pop(queue), has_begun)
    assert queue.get_task(task_id).state is state


@pytest.mark.parametrize("wrong", [0, 1001, True, 1.5, "3"])
def test_an_invalid_limit_of_deliveries_is_refused(wrong: Any) -> None:
    with pytest.raises(TaskValidationError, match="max_deliveries must be a whole number from 1 to 1000"):
        task("a", max_deliveries=wrong)


def crashed(queue: FairQueue, lease: Lease, now: float) -> object:
    return queue.release_worker("w", [lease.token], now=now)


def reported(queue: FairQueue, lease: Lease, now: float) -> object:
    return queue.settle([Outcome.crash(lease, "the worker failed")], now=now)


def never_renewed(queue: FairQueue, lease: Lease, now: float) -> object:
    return queue.sweep(now=now)


@pytest.mark.parametrize("end", [crashed, reported, never_renewed])
@pytest.mark.parametrize("priority", [3, 6])
def test_the_pause_after_each_crash_grows_from_the_second_crash(
    make_queue: MakeQueue, end: Callable[[FairQueue, Lease, float], object], priority: int
) -> None:
    queue = make_queue(max_deliveries=9)
    task_id = push_many(queue, "a", 1, priority=priority)[0]
    now, pauses = NOW, []
    for delivery in range(1, 9):
        lease = pop(queue, now, lease=10)
        assert lease.delivery == delivery
        now += 10
        end(queue, lease, now)
        task = queue.get_task(task_id)
        pause = 0.0
        if task.state is TaskState.SCHEDULED:
            assert task.execute_after is not None
            pause = round(task.execute_after - now, 6)
            assert queue.pop("w", now=now + pause - 0.001) is None
        pauses.append(pause)
        now += pause
    # Tokens are 1, 2, 3 ...: a sixteenth is added for each.
    least = [0, 0.5, 1, 2, 4, 4, 4, 4]
    assert pauses == [pause * (1 + token / 16) for token, pause in enumerate(least, 1)]
    end(queue, pop(queue, now, lease=10), now + 10)
    assert queue.dlq.get(f"{task_id}~1").failure_type is FailureType.POISONED


def test_a_task_returned_unstarted_is_ready_at_once(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    crashed(queue, pop(queue), NOW)
    for _ in range(5):
        queue.release(pop(queue), now=NOW)
    assert pop(queue).delivery == 2


def test_tasks_that_crashed_together_are_ready_one_after_the_other(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 6)
    for _ in range(2):
        leases = queue.pop_batch(6, "w", now=NOW)
        queue.release_worker("w", [lease.token for lease in leases], now=NOW)
    due = [queue.get_task(task_id).execute_after or 0.0 for task_id in ids]
    assert len(set(due)) == 6
    assert min(due) >= NOW + 0.5
    assert max(due) <= NOW + 1


def test_a_crash_that_is_reported_twice_counts_once(queue: FairQueue) -> None:
    """The reply was lost, and the task waits for its pause by then."""
    push_many(queue, "a", 1)
    crashed(queue, pop(queue), NOW)
    outcome = Outcome.crash(pop(queue), "the worker failed")
    for _ in range(2):
        assert queue.settle([outcome], now=NOW).statuses == ["released"]
    assert pop(queue, NOW + 1).delivery == 3


def test_the_tasks_of_a_dead_process_are_returned_to_the_queue(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 5)
    leases = queue.pop_batch(5, "child", now=NOW)
    assert queue.release_worker("child", crashed=[leases[1].token], forget=True, now=NOW) == 5
    again = queue.pop_batch(5, "w", now=NOW)
    assert [lease.task_id for lease in again] == ids
    assert [lease.delivery for lease in again] == [1, 2, 1, 1, 1]
    assert [queue.history(task_id)[0].kind for task_id in ids[:2]] == ["released", "crashed"]
    for lease in leases:
        with pytest.raises(StaleLeaseError):
            queue.finish(lease, now=NOW)


@pytest.mark.parametrize("state", ["queued", "critical", "scheduled", "started"])
def test_a_task_in_any_unfinished_state_can_be_canceled(queue: FairQueue, state: str) -> None:
    made = task("a", 6 if state == "critical" else 3, execute_after=NOW + 9 if state == "scheduled" else None)
    queue.push(made, now=NOW)
    lease = pop(queue) if state == "started" else None
    assert queue.cancel(made.task_id, reason="not wanted", now=NOW) is True
    assert queue.cancel(made.task_id, now=NOW) is False
    assert queue.get_task(made.task_id).state is TaskState.CANCELED
    assert queue.history(made.task_id)[-1].error == "not wanted"
    if lease:
        with pytest.raises(StaleLeaseError):
            queue.finish(lease, now=NOW)
    assert queue.pop("w", now=NOW + 10) is None
    with pytest.raises(TaskNotFoundError, match="knows no task 'nothing'"):
        queue.cancel("nothing")


def test_dead_letters_are_requeued_with_a_new_payload_or_discarded(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 3, payload=1)
    for lease in queue.pop_batch(3, "w", now=NOW):
        queue.fail(lease, "no", retry=False, now=NOW)
    entries = [entry.entry_id for entry in queue.dlq.list().items]
    assert sorted(entries) == sorted(f"{task_id}~1" for task_id in ids)
    queue.dlq.requeue(entries[0], {"n": 2}, now=NOW)
    queue.dlq.discard(entries[1], now=NOW)
    for gone in entries[:2]:
        with pytest.raises(TaskNotFoundError):
            queue.dlq.requeue(gone, now=NOW)
        with pytest.raises(TaskNotFoundError):
            queue.dlq.discard(gone, now=NOW)
        with pytest.raises(TaskNotFoundError):
            queue.dlq.get(gone)
    lease = pop(queue)
    assert (lease.payload, lease.retry_count, lease.delivery) == ({"n": 2}, 0, 1)
    queue.fail(lease, "again", retry=False, now=NOW)
    assert queue.dlq.get(entries[0][:-1] + "2").reason == "again"
    assert queue.dlq.count() == 2


def test_dead_letters_of_a_user_are_requeued_in_slices(queue: FairQueue) -> None:
    push_many(queue, "a", 250)
    push_many(queue, "b", 50)
    for lease in queue.pop_batch(300, "w", now=NOW):
        queue.fail(lease, "no", retry=False, now=NOW)
    assert queue.dlq.requeue_all(user_id="a", limit=20, now=NOW) == 20
    assert queue.dlq.requeue_all(user_id="a", now=NOW) == 230
    assert queue.dlq.count() == 50
    assert queue.dlq.cleanup(100, now=NOW + 99) == 0
    assert queue.dlq.cleanup(100, now=NOW + 101) == 50
    assert queue.dlq.count() == 0


def test_no_key_remains_after_the_retention_of_all_tasks(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 30)
    push_many(queue, "b", 3, priority=6)
    for i, lease in enumerate(queue.pop_batch(33, "w", now=NOW)):
        if i % 3 == 0:
            queue.fail(lease, "no", retry=False, now=NOW)
        else:
            queue.finish(lease, {"n": i}, now=NOW)
    queue.sweep(now=NOW + 86_401)
    assert queue.get_stats().states["failed"] == 11
    queue.sweep(now=NOW + 7 * 86_400 + 1)
    queue.sweep(now=NOW + 7 * 86_400 + 3602)  # a user without dead letters is kept for an hour
    assert all(redis.ttl(key) > 0 for key in redis.keys("*:periods:*"))
    redis.delete(*(key for kind in ("reply", "stats", "periods") for key in redis.keys(f"*:{kind}:*")))
    assert sorted(redis.keys()) == [b"fq:{default:0}:signing_keys", b"fq:{default:0}:stats"]


def test_a_user_with_limits_is_not_forgotten(queue: FairQueue) -> None:
    queue.user("a").set_weight(2, now=NOW)
    queue.user("b").set_weight(1, now=NOW)
    queue.sweep(now=NOW + 4000)
    assert queue.users().items == ["a"]
    assert queue.user("a").stats().weight == 2
