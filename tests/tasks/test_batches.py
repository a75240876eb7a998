"""Tests of batch tasks: one call runs many items, and each item has a separate outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque import BatchResult, FailureType, Retry, Task, TaskUsageError, current_task, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import Services, aexecute, arun_batch, run_batch

from .helpers import run_next, run_of, runs_of


def batch_of(queue: FairQueue, services: Services, answer: Callable[[list[Any]], Any], n: int = 3) -> list[str]:
    @task(name="batch", batch=10, max_retries=0)
    def work(items: list[int]) -> Any:
        return answer(items)

    work.enqueue_many([((i,), {}) for i in range(n)])
    return queue.settle(run_batch(runs_of(queue, services))).statuses


def by_item(items: list[int]) -> BatchResult:
    result = BatchResult(items)
    result.ok(0, "fine")
    result.fail(1, "broken")
    result.discard(2, "old")
    return result


@pytest.mark.parametrize(
    ("answer", "statuses"),
    [
        (lambda items: None, ["finished"] * 3),
        (lambda items: [10, 11, 12], ["finished"] * 3),
        (lambda items: [10, ValueError("no"), Retry(1)], ["finished", "dead", "retried"]),
        (by_item, ["finished", "dead", "canceled"]),
        (lambda items: [1], ["dead"] * 3),
        (lambda items: 5, ["dead"] * 3),
        (lambda items: [1, object(), "x" * 300_000], ["finished", "dead", "dead"]),
        (lambda items: 1 / 0, ["dead"] * 3),
    ],
)
def test_each_item_of_a_batch_has_its_outcome(
    queue: FairQueue, services: Services, answer: Callable[[list[Any]], Any], statuses: list[str]
) -> None:
    assert batch_of(queue, services, answer) == statuses


async def test_a_batch_of_coroutines_is_one_call(queue: FairQueue, services: Services) -> None:
    @task(batch=5)
    async def work(items: list[int]) -> list[Any]:
        current_task().progress(1, 1)
        return [item or ValueError("zero") for item in items]

    work.enqueue_many([((n,), {}) for n in range(3)])
    runs = runs_of(queue, services)
    assert [outcome.kind for outcome in await arun_batch(runs)] == ["fail", "finish", "finish"]
    work.enqueue(0)
    assert (await aexecute(run_of(queue, services))).kind == "fail"
    assert current_task().id == ""


def test_a_batch_of_one_is_a_batch(queue: FairQueue, services: Services) -> None:
    @task(batch=5)
    def work(items: list[int]) -> list[int]:
        return [len(items)]

    result = work.enqueue(7)
    assert run_next(queue, services) == "finished"
    assert result.result() == 1


def test_an_item_without_an_outcome_is_a_dead_letter(queue: FairQueue, services: Services) -> None:
    def answer(items: list[Any]) -> BatchResult:
        result = BatchResult(len(items))
        result.ok(0)
        result.retry(1, 5, "busy")
        return result

    assert batch_of(queue, services, answer) == ["finished", "retried", "dead"]
    assert "says nothing of this item" in queue.dlq.list().items[0].reason


@pytest.mark.parametrize("payload", [{"args": [], "kwargs": {}}, {"args": [1], "kwargs": {"a": 1}}])
def test_a_batch_item_of_another_shape_is_poison(queue: FairQueue, services: Services, payload: Any) -> None:
    @task(name="batch", batch=5)
    def work(items: list[Any]) -> None: ...

    queue.push(Task.create("u", 3, payload, name="batch"))
    assert run_next(queue, services) == "dead"
    assert queue.dlq.list().items[0].failure_type is FailureType.POISONED


@pytest.mark.parametrize("index", [-1, 3, "0", 0.0, True, None])
def test_an_outcome_of_an_unknown_item_is_refused(index: Any) -> None:
    with pytest.raises(TaskUsageError, match="an integer from 0 to 2"):
        BatchResult(3).ok(index)


def test_a_result_is_no_error_and_an_error_no_result() -> None:
    with pytest.raises(TaskUsageError, match=r"use fail\(0"):
        BatchResult(3).ok(0, ValueError())
    with pytest.raises(TaskUsageError, match="exception or text"):
        BatchResult(3).fail(0, 5)  # type: ignore[arg-type]


def test_the_run_time_of_a_batch_is_divided_among_its_items(queue: FairQueue, services: Services) -> None:
    @task(batch=4)
    def work(items: list[int]) -> None:
        sum(range(200_000))

    work.enqueue_many([((n,), {}) for n in range(4)])
    runs = runs_of(queue, services)
    started = time.perf_counter()
    shares = [outcome.took or 0 for outcome in run_batch(runs)]
    assert 0 < sum(shares) <= time.perf_counter() - started
    assert len(set(shares)) == 1
