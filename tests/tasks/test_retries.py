"""Tests of the effect of an exception: another attempt after a delay, a dead letter, or the end of the task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_fairque import Discard, Retry, SoftTimeLimitExceeded
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.errors import TaskRevoked, TaskTimeoutError
from django_fairque.tasks.execution import Run, Services, execute, failed_outcome, prepare
from django_fairque.tasks.retries import NextStep, decide_next_step
from tests.leases import pop

from .helpers import raising, run_next, run_next_of, run_of


@pytest.mark.parametrize(
    ("error", "options", "status", "retries"),
    [
        (OSError("net"), {}, "retried", 1),
        (OSError("net"), {"max_retries": 0}, "dead", 0),
        (OSError("net"), {"retry_on": (ValueError,)}, "dead", 0),
        (OSError("net"), {"backoff": lambda retries, error: None}, "dead", 0),
        (OSError("net"), {"backoff": lambda retries, error: 1 / 0}, "retried", 1),
        (SystemExit(1), {}, "retried", 1),
        (KeyboardInterrupt(), {}, "retried", 1),
        (Retry(5), {"max_retries": 0}, "retried", 0),
        (Discard("old"), {}, "canceled", 0),
    ],
)
def test_the_raised_exception_decides_about_the_next_attempt(
    queue: FairQueue, services: Services, error: BaseException, options: dict[str, Any], status: str, retries: int
) -> None:
    result = raising(error, **options)()
    assert run_next(queue, services) == status
    assert queue.get_task(result.id).retry_count == retries
    assert str(error) in result.errors[0].error


@pytest.mark.parametrize(
    ("error", "retries_left", "step"),
    [
        (OSError("net"), 2, NextStep.RETRY),
        (OSError("net"), 0, NextStep.FAIL),
        (ValueError("no"), 2, NextStep.FAIL),
        (SoftTimeLimitExceeded(), 1, NextStep.RETRY),
        (TaskTimeoutError(), 1, NextStep.RETRY),
        (SoftTimeLimitExceeded(), 0, NextStep.FAIL),
        (Retry(5), 0, NextStep.POSTPONE),
        (Retry(5, counts=True), 1, NextStep.RETRY),
        (Retry(5, counts=True), 0, NextStep.FAIL),
        (Discard("old"), 2, NextStep.CANCEL),
        (TaskRevoked(), 2, NextStep.GIVE_BACK),
    ],
)
def test_an_error_and_the_retries_left_decide_the_next_step(
    queue: FairQueue, services: Services, error: BaseException, retries_left: int, step: NextStep
) -> None:
    raising(OSError("net"), retry_on=(OSError,))()
    assert decide_next_step(error, run_of(queue, services).definition, retries_left) is step


def test_retries_wait_longer_each_time(queue: FairQueue, services: Services) -> None:
    result = raising(OSError(), backoff={"base": 10, "cap": 15, "jitter": 0})()
    run_next(queue, services)
    first = queue.get_task(result.id).execute_after
    now = (first or 0) + 1
    prepared = prepare(pop(queue, now=now), services)
    assert isinstance(prepared, Run)
    queue.settle([execute(prepared)], now=now)
    assert queue.get_task(result.id).execute_after == pytest.approx(now + 15)


def test_a_task_stopped_by_its_time_limit_is_retried_for_any_retry_on(queue: FairQueue, services: Services) -> None:
    assert run_next_of(queue, services, SoftTimeLimitExceeded(), retry_on=(ValueError,)) == "retried"
    run_of_it = raising(OSError(), retry_on=(ValueError,))()
    run = run_of(queue, services)
    assert run.lease.task_id == run_of_it.id
    assert failed_outcome(run, SoftTimeLimitExceeded()).delay is not None  # stopped from outside


def test_a_backoff_function_decides_from_retries_and_error(queue: FairQueue, services: Services) -> None:
    calls: list[Any] = []

    def backoff(retries: int, error: BaseException) -> timedelta:
        calls.append((retries, error))
        return timedelta(minutes=2)

    error = OSError("net")
    raising(error, backoff=backoff)()
    assert execute(run_of(queue, services)).delay == 120
    assert calls == [(0, error)]


@pytest.mark.parametrize("answer", [-1, "soon", float("nan"), True, timedelta(days=-1)])
def test_a_backoff_function_that_returns_a_wrong_value_costs_no_retry(
    queue: FairQueue, services: Services, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raising(OSError("net"), backoff=lambda retries, error: answer)()
    delay = execute(run_of(queue, services)).delay
    assert delay is not None
    assert 1 <= delay <= 1.1
    assert "using the default delay" in caplog.text


@pytest.mark.parametrize("error", [Retry(), Retry(None, "not yet")])
def test_a_retry_without_a_delay_waits_as_after_an_error(queue: FairQueue, services: Services, error: Retry) -> None:
    raising(error, backoff={"base": 50, "jitter": 0})()
    outcome = execute(run_of(queue, services))
    assert (outcome.kind, outcome.delay) == ("later", 50)
