"""Tasks of which one call takes many: each item has an outcome of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import BatchResult, FailureType, Retry, Task, TaskUsageError, current_task, task
from django_fairque.tasks.execution import Run, aexecute, arun_batch, prepare, run_batch

from .helpers import run_next, run_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.execution import Services


def batch_of(queue: FairQueue, services: Services, answer: Callable[[list[Any]], Any], n: int = 3) -> list[str]:
    @task(name="batch", batch=10, max_retries=0)
    def work(items: list[int]) -> Any:
        return answer(items)

    work.enqueue_many([((i,), {}) for i in range(n)])
    runs = [prepare(lease, services) for lease in queue.pop_batch(10, "w")]
    return queue.settle(run_batch([run for run in runs if isinstance(run, Run)])).statuses


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
    runs = [run for run in (prepare(lease, services) for lease in queue.pop_batch(5, "w")) if isinstance(run, Run)]
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


def test_one_bad_result_of_a_batch_is_its_own(queue: FairQueue, services: Services) -> None:
    assert batch_of(queue, services, lambda items: [1, object(), "x" * 300_000]) == ["finished", "dead", "dead"]


def test_an_item_of_which_nothing_is_said_is_not_lost(queue: FairQueue, services: Services) -> None:
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
def test_an_item_that_is_not_there_can_not_be_spoken_of(index: Any) -> None:
    with pytest.raises(TaskUsageError, match="an integer from 0 to 2"):
        BatchResult(3).ok(index)


def test_a_result_is_no_error_and_an_error_no_result() -> None:
    with pytest.raises(TaskUsageError, match=r"use fail\(0"):
        BatchResult(3).ok(0, ValueError())
    with pytest.raises(TaskUsageError, match="exception or text"):
        BatchResult(3).fail(0, 5)  # type: ignore[arg-type]


def test_the_time_of_a_batch_is_shared(queue: FairQueue, services: Services) -> None:
    @task(batch=4)
    def work(items: list[int]) -> None:
        sum(range(200_000))

    work.enqueue_many([((n,), {}) for n in range(4)])
    runs = [run for run in (prepare(lease, services) for lease in queue.pop_batch(5, "w")) if isinstance(run, Run)]
    started = time.perf_counter()
    shares = [outcome.took or 0 for outcome in run_batch(runs)]
    assert 0 < sum(shares) <= time.perf_counter() - started
    assert len(set(shares)) == 1
