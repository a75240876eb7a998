"""Limits of retries: `expires`, and `Retry` with counts, max and a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_fairque import BatchResult, Retry, TaskState, current_task, task
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import Run, Services, execute, prepare
from tests.leases import pop

MOST_RUNS = 30


def runs_of(queue: FairQueue, services: Services, task_id: str, *, step: float = 0.0) -> int:
    """Run the task at the moments at which it is due, ``step`` seconds late each time, until it ends. Return how often."""
    now, runs = time.time(), 0
    while runs < MOST_RUNS:
        lease = queue.pop("w", now=now)
        if lease is not None:
            run = prepare(lease, services)
            assert isinstance(run, Run)
            queue.settle([execute(run)], now=now)
            runs += 1
        found = queue.get_task(task_id)
        if found.state.is_ended:
            return runs
        if found.state is TaskState.SCHEDULED:
            now = (found.execute_after or now) + step
    return runs


def raising(make: Callable[[], BaseException], **options: Any) -> Any:
    @task(name="raises", **options)
    def raises() -> None:
        raise make()

    return raises


def reason_of(queue: FairQueue) -> tuple[FailureType, str]:
    (letter,) = queue.dlq.list().items
    return letter.failure_type, letter.reason


# --- expires ---


@pytest.mark.parametrize(
    ("make", "error", "options"),
    [
        (lambda: Retry(600, "not here yet"), "not here yet", {}),
        (
            lambda: OSError("net"),
            "OSError: net",
            {"max_retries": 100, "backoff": {"base": 600, "cap": 600, "jitter": 0}},
        ),
    ],
    ids=["Retry", "error"],
)
def test_a_task_that_expires_is_not_tried_again(
    queue: FairQueue, services: Services, make: Callable[[], BaseException], error: str, options: dict[str, Any]
) -> None:
    handle = raising(make, expires=3000, **options).enqueue()
    assert runs_of(queue, services, handle.id) == 5  # at 0, 600 … 2,400 s
    assert reason_of(queue) == (FailureType.EXPIRED, f"the next attempt would start after expires: {error}")
    assert queue.history(handle.id)[-1].worker == "w"


def test_a_retry_that_starts_too_late_expires_in_the_queue(queue: FairQueue, services: Services) -> None:
    handle = raising(lambda: Retry(600), expires=1000).enqueue()
    assert runs_of(queue, services, handle.id, step=500) == 1
    assert reason_of(queue) == (FailureType.EXPIRED, "not started again in time")


def test_a_task_that_was_given_back_has_started_in_time(queue: FairQueue) -> None:
    handle, now = raising(ValueError, expires=100).enqueue(), time.time()
    for make in (Outcome.release, lambda lease: Outcome.crash(lease, "died")):
        queue.settle([make(pop(queue, now=now))], now=now)
        now += 200
    assert queue.get_task(handle.id).state is TaskState.QUEUED
    assert queue.pop("w", now=now) is not None


def test_a_requeued_task_does_not_expire(queue: FairQueue, services: Services) -> None:
    handle = raising(lambda: Retry(600), expires=300).enqueue()
    assert runs_of(queue, services, handle.id) == 1
    queue.dlq.requeue(f"{handle.id}~1", now=time.time() + 1000)
    assert runs_of(queue, services, handle.id) == MOST_RUNS


# --- limits of Retry ---


def test_a_retry_that_counts_uses_up_retries(queue: FairQueue, services: Services) -> None:
    seen: list[tuple[int, int]] = []

    @task(name="mails", max_retries=2)
    def mails() -> None:
        seen.append((current_task().attempt, current_task().retries_left))
        try:
            raise OSError("the mail server is away")  # noqa: TRY301
        except OSError as error:
            raise Retry(60, "the mail server is away", counts=True) from error

    handle = mails.enqueue()
    assert runs_of(queue, services, handle.id) == 3
    assert seen == [(1, 2), (2, 1), (3, 0)]
    kind, reason = reason_of(queue)
    assert (kind, reason) == (FailureType.FAILED, "django_fairque.tasks.errors.Retry: the mail server is away")
    assert "OSError: the mail server is away" in queue.history(handle.id)[-1].traceback


@pytest.mark.parametrize(
    ("options", "max_retries", "runs"),
    [
        ({}, 0, MOST_RUNS),
        ({"max": 0}, 3, 1),
        ({"max": 4}, 0, 5),
        ({"max": 4, "counts": True}, 9, 5),
        ({"max": 9, "counts": True}, 2, 3),
        ({"deadline": 185}, 0, 4),
        ({"deadline": timedelta(minutes=3, seconds=5)}, 0, 4),
        ({"deadline": lambda: datetime.now(timezone.utc) + timedelta(minutes=3, seconds=50)}, 0, 4),
        ({"deadline": lambda: datetime.now(timezone.utc) - timedelta(minutes=3)}, 0, 1),
        ({"deadline": 185, "max": 2}, 0, 3),
    ],
)
def test_the_limits_of_a_retry_end_it(
    queue: FairQueue, services: Services, options: dict[str, Any], max_retries: int, runs: int
) -> None:
    given = {name: value() if callable(value) else value for name, value in options.items()}
    handle = raising(lambda: Retry(60, "not yet", **given), max_retries=max_retries).enqueue()
    assert runs_of(queue, services, handle.id) == runs
    if runs < MOST_RUNS:
        kind, reason = reason_of(queue)
        assert kind is FailureType.FAILED
        assert reason.endswith("not yet")
        assert handle.state is TaskState.FAILED
        queue.dlq.requeue(f"{handle.id}~1")
        assert queue.get_task(handle.id).retry_count == 0


def test_the_limits_say_why_the_task_failed(queue: FairQueue, services: Services) -> None:
    handle = raising(lambda: Retry(60, "not yet", max=1)).enqueue()
    runs_of(queue, services, handle.id)
    assert reason_of(queue)[1] == "Retry was raised more often than its max allows, 1: not yet"
    queue.dlq.requeue(f"{handle.id}~1")
    assert runs_of(queue, services, handle.id) == 2  # the count begins again


def test_items_of_a_batch_have_the_limits(queue: FairQueue, services: Services) -> None:
    @task(name="items", batch=10, max_retries=1)
    def items(numbers: list[int]) -> BatchResult:
        answers = BatchResult(numbers)
        for index in range(len(numbers)):
            answers.retry(index, 60, "not yet", counts=True)
        return answers

    handle = items.enqueue(1)
    assert runs_of(queue, services, handle.id) == 2


@pytest.mark.parametrize("wrong", [{"max": -1}, {"max": "3"}, {"deadline": "soon"}, {"deadline": datetime(2030, 1, 1)}])  # noqa: DTZ001
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of Retry"):
        Retry(60, **wrong)
