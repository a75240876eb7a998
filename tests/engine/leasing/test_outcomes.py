"""An outcome of a lease is counted once, gets the same answer when repeated, and is stale if another took the lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, everything, pop, push_many, task

KINDS: dict[str, Callable[[Lease], Outcome]] = {
    "finish": Outcome.finish,
    "fail": lambda lease: Outcome.fail(lease, "broken", delay=5),
    "fail for good": lambda lease: Outcome.fail(lease, "broken", delay=None),
    "later": lambda lease: Outcome.retry(lease, "not yet", delay=5),
    "discard": lambda lease: Outcome.discard(lease, "not wanted"),
    "poison": lambda lease: Outcome.poison(lease, "no JSON"),
    "release": Outcome.release,
    "crash": lambda lease: Outcome.crash(lease, "died"),
}
ANSWERS = dict(
    zip(KINDS, ("finished", "retried", "dead", "retried", "canceled", "dead", "released", "released"), strict=True)
)


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_a_second_outcome_of_a_lease_is_stale_unless_it_equals_the_first(
    queue: FairQueue, redis: Redis, first: str, second: str
) -> None:
    push_many(queue, "a", 1, max_retries=3)
    lease = pop(queue)
    assert queue.settle([KINDS[first](lease)], now=NOW).statuses == [ANSWERS[first]]
    before = everything(redis)
    (status,) = queue.settle([KINDS[second](lease)], now=NOW).statuses
    is_same = KINDS[second](lease).kind == KINDS[first](lease).kind
    assert status == (ANSWERS[first] if is_same else "stale"), "a repetition gets the first answer"
    assert everything(redis) == before


@pytest.mark.parametrize("first", KINDS)
def test_a_repeated_outcome_gets_the_first_reply_whatever_happened_to_its_task(queue: FairQueue, first: str) -> None:
    (task_id,) = push_many(queue, "a", 1, max_retries=3)
    outcome = KINDS[first](pop(queue))
    for now in (NOW, NOW + 1):
        assert queue.settle([outcome], now=now).statuses == [ANSWERS[first]]
    state = queue.get_task(task_id).state
    if state is TaskState.FAILED:
        queue.dlq.requeue(f"{task_id}~1", now=NOW + 1)
    elif state is not TaskState.FINISHED:
        queue.cancel(task_id, now=NOW + 1)
    assert queue.settle([outcome], now=NOW + 2).statuses == [ANSWERS[first]]


def test_a_repeated_report_of_the_last_allowed_crash_gets_the_first_reply(make_queue: MakeQueue) -> None:
    queue = make_queue(max_deliveries=1)
    push_many(queue, "a", 1)
    first = Outcome.crash(pop(queue), "died")
    assert queue.settle([first], now=NOW).statuses == ["released"], (
        "another task of its process may have been the cause"
    )
    outcome = Outcome.crash(pop(queue), "died again")
    for _ in range(2):
        assert queue.settle([outcome], now=NOW).statuses == ["dead"]
    assert queue.settle([Outcome.release(outcome.lease)], now=NOW).statuses == ["stale"]


def test_outcomes_and_the_next_fetch_are_sent_in_one_call(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 6)
    leases = queue.pop_batch(4, "w", now=NOW)
    redis.config_resetstat()
    outcomes = [
        Outcome.finish(leases[0], 1),
        Outcome.fail(leases[1], "no", delay=5),
        Outcome.discard(leases[2], "old"),
        Outcome.poison(leases[3], "bad"),
    ]
    settled = queue.settle(outcomes, 9, worker="w", now=NOW)
    stats: Any = redis.info("commandstats")
    calls = stats.get("cmdstat_fcall") or stats["cmdstat_evalsha"]
    assert calls["calls"] - calls["failed_calls"] == 1  # one more when the server did not know the function
    assert settled.statuses == ["finished", "retried", "canceled", "dead"]
    assert len(settled.leases) == 2
    assert settled.look_at == NOW + 5


def test_a_retry_without_a_delay_waits_like_a_failure(queue: FairQueue) -> None:
    task_id = push_many(queue, "a", 1)[0]
    now = NOW
    for delay in (1, 2, 4):
        assert queue.settle([Outcome.fail(pop(queue, now), ValueError("no"))], now=now).statuses == ["retried"]
        assert queue.get_task(task_id).execute_after == pytest.approx(now + delay)
        now += delay
    assert queue.settle([Outcome.fail(pop(queue, now), "no")], now=now).statuses == ["dead"]
    assert queue.get_task(task_id).state is TaskState.FAILED


def test_a_failure_without_a_delay_uses_the_backoff_of_the_queue_s_settings(make_queue: MakeQueue) -> None:
    queue = make_queue(retry_base_seconds=100, retry_cap_seconds=150, retry_jitter=0.1)
    task_id = push_many(queue, "a", 1)[0]
    assert queue.settle([Outcome.fail(pop(queue), "no")], now=NOW).statuses == ["retried"]
    assert NOW + 100 <= queue.get_task(task_id).execute_after <= NOW + 110  # type: ignore[operator]
    assert queue.settle([Outcome.fail(pop(queue, NOW + 110), "no")], now=NOW + 110).statuses == ["retried"]
    assert NOW + 260 <= queue.get_task(task_id).execute_after <= NOW + 275  # type: ignore[operator]


def test_a_failure_with_a_delay_of_none_is_not_retried(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    assert queue.settle([Outcome.fail(pop(queue), "no", delay=None)], now=NOW).statuses == ["dead"]


@pytest.mark.parametrize("delay", ["soon", "", -1, float("nan"), True])
def test_an_invalid_delay_of_an_outcome_is_refused(queue: FairQueue, delay: Any) -> None:
    push_many(queue, "a", 1)
    with pytest.raises(TaskValidationError, match="delay must be a number of seconds"):
        Outcome.fail(pop(queue), "no", delay=delay)


def test_a_single_failure_refuses_text_as_its_delay(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    lease = pop(queue)
    with pytest.raises(TaskValidationError, match="delay must be a number of seconds"):
        queue.fail(lease, "no", delay="backoff", now=NOW)  # type: ignore[arg-type]
    assert queue.fail(lease, "no", now=NOW) is TaskState.SCHEDULED


def test_tasks_with_equal_ready_times_can_finish_and_be_released_in_one_call(queue: FairQueue) -> None:
    queue.push_batch([task("a", execute_after=NOW + 10) for _ in range(4)], now=NOW)
    leases = queue.pop_batch(4, "w", now=NOW + 10)
    assert len({lease.ready_at for lease in leases}) == 1
    outcomes = [
        Outcome.finish(leases[0]),
        Outcome.release(leases[1]),
        Outcome.finish(leases[2]),
        Outcome.release(leases[3]),
    ]
    assert queue.settle(outcomes, now=NOW + 11).statuses == ["finished", "released", "finished", "released"]
    assert [lease.task_id for lease in queue.pop_batch(4, "w", now=NOW + 11)] == [leases[1].task_id, leases[3].task_id]
