"""Errors, results and arguments of which every special method raises, in tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque import BatchResult, Discard, Retry, TaskState, task
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import Run, Services, arun_batch, prepare, run_batch
from tests.hostile import EVERYTHING, RAISED, hostile_class, hostile_classes

from .helpers import run_next


def outcomes_of(
    queue: FairQueue, services: Services, raising: Callable[[type[Any]], object], *, is_async: bool
) -> list[tuple[type[Any], Outcome]]:
    """The outcomes of one task for each hostile class: it calls ``raising`` with the class."""
    kinds = list(hostile_classes())

    if is_async:

        @task(name="hostile")
        async def work(index: int) -> object:
            return raising(kinds[index])

    else:

        @task(name="hostile")
        def work(index: int) -> object:
            return raising(kinds[index])

    found: list[tuple[type[Any], Outcome]] = []
    work.enqueue_many([((index,), {}) for index in range(len(kinds))])
    for lease in queue.pop_batch(len(kinds), "w"):
        run = prepare(lease, services)
        assert isinstance(run, Run)
        (outcome,) = asyncio.run(arun_batch([run])) if is_async else run_batch([run])
        found.append((kinds[run.args[0]], outcome))
    statuses = queue.settle([outcome for _, outcome in found]).statuses
    assert len(statuses) == len(kinds)
    assert "stale" not in statuses
    return found


def fail(kind: type[Any]) -> None:
    raise kind("refused")


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
def test_a_hostile_error_is_an_ordinary_failure(queue: FairQueue, services: Services, is_async: bool) -> None:
    for kind, outcome in outcomes_of(queue, services, fail, is_async=is_async):
        assert outcome.kind == "fail", kind
        assert outcome.delay is not None, kind
        assert kind.__name__ in outcome.body.decode(), kind
        assert "in fail" in outcome.trace.decode(), kind


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
def test_a_hostile_result_is_a_failure_for_good(queue: FairQueue, services: Services, is_async: bool) -> None:
    def result_of(kind: type[Any]) -> object:
        base = (object, dict, list, str)[len(kind.__name__) % 4]
        return type(
            kind.__name__, (base,), {k: v for k, v in vars(kind).items() if k in dir(base) and k != "__dict__"}
        )()

    outcomes = outcomes_of(queue, services, result_of, is_async=is_async)
    assert {outcome.kind for _, outcome in outcomes} <= {"fail", "finish"}
    failed = [outcome for _, outcome in outcomes if outcome.kind == "fail"]
    assert len(failed) > 10
    assert all(outcome.delay is None and b"result is not JSON" in outcome.body for outcome in failed)


def test_hostile_items_of_a_batch_fail_alone(queue: FairQueue, services: Services) -> None:
    kinds = list(hostile_classes())

    @task(name="some", batch=100, max_retries=0)
    def some(items: list[int]) -> BatchResult:
        answers = BatchResult(items)
        for index, item in enumerate(items):
            if item < len(kinds):
                answers.fail(index, kinds[item]("refused"))
            else:
                answers.ok(index, hostile_class(EVERYTHING, SystemExit, object)() if item == len(kinds) else item)
        return answers

    handles = some.enqueue_many([((index,), {}) for index in range(len(kinds) + 3)])
    runs = [prepare(lease, services) for lease in queue.pop_batch(len(kinds) + 3, "w")]
    queue.settle(run_batch([run for run in runs if isinstance(run, Run)]))
    states = [handle.state for handle in handles]
    assert states.count(TaskState.FINISHED) == 2
    assert states.count(TaskState.FAILED) == len(kinds) + 1


@pytest.mark.parametrize("base", [Retry, Discard])
def test_a_hostile_instruction_works_or_fails(queue: FairQueue, services: Services, base: type[BaseException]) -> None:
    kinds = list(hostile_classes(base))

    @task(name="instructs", max_retries=0)
    def instructs(index: int) -> None:
        kind = kinds[index]
        raise BaseException.__new__(kind)

    statuses = []
    for index in range(len(kinds)):
        instructs.enqueue(index)
        statuses.append(run_next(queue, services))
    assert set(statuses) <= ({"dead", "retried"} if base is Retry else {"dead", "canceled"})


@pytest.mark.parametrize("raised", RAISED)
def test_a_hostile_backoff_function_or_class_changes_nothing(
    queue: FairQueue, services: Services, raised: type[BaseException]
) -> None:
    def backoff(_retries: int, error: BaseException) -> float:
        raise raised(str(error))

    @task(name="odd", backoff=backoff)
    def odd() -> None:
        raise hostile_class("__str__", raised)

    odd.enqueue()
    assert run_next(queue, services) == "retried"


def test_a_hostile_argument_is_refused_when_it_is_sent(queue: FairQueue) -> None:
    del queue

    @task(name="takes")
    def takes(value: object) -> None:
        del value

    for kind in hostile_classes(object):
        if kind.__name__.endswith("KeyError"):
            with pytest.raises(TaskValidationError):
                takes.enqueue(kind())
