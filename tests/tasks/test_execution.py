"""Tests of the results, states, tracebacks and time limits that a run records in the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_fairque import Discard, Retry, Task, TaskState, current_task, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import Services, aexecute, execute

from .helpers import noop, raising, run_next, run_of


def test_a_result_is_stored(queue: FairQueue, services: Services) -> None:
    @task
    def work(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    result = work.enqueue(4)
    assert run_next(queue, services) == "finished"
    assert result.result() == {"twice": 8}


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 300_000])
def test_a_result_that_can_not_be_stored_is_a_dead_letter(queue: FairQueue, services: Services, value: object) -> None:
    @task
    def work() -> object:
        return value

    work.enqueue()
    assert run_next(queue, services) == "dead"


def test_a_task_reads_its_context_and_reports_progress(queue: FairQueue, services: Services) -> None:
    seen: list[Any] = []

    @task(name="curious", user="who", timeout=60)
    def work(who: str) -> None:
        me = current_task()
        me.progress(1, 2, "half")
        seen.append((me.id, me.name, me.user_id, me.attempt, me.retries_left, me.fence > 0, me.deadline is not None))

    result = work.enqueue("acme")
    run_next(queue, services)
    assert seen == [(result.id, "curious", "acme", 1, 3, True, True)]
    progress = result.progress
    assert progress is not None
    assert (progress.current, progress.total, progress.message) == (1, 2, "half")
    assert current_task().id == ""
    current_task().progress(1, 2)  # inert outside


def test_the_state_of_a_result_follows_its_task(queue: FairQueue, services: Services) -> None:
    result = raising(Discard("no"))()
    states = [result.state]
    run_next(queue, services)
    assert [*states, result.state] == [TaskState.QUEUED, TaskState.CANCELED]
    assert result.task is not None
    assert result.task.state is TaskState.CANCELED


def test_a_traceback_begins_in_the_task(queue: FairQueue, services: Services) -> None:
    def deeper() -> None:
        raise OSError("net")

    @task(name="failing")
    def work() -> None:
        deeper()

    result = work.enqueue()
    run_next(queue, services)
    trace = result.errors[0].traceback
    assert "in work" in trace
    assert "in deeper" in trace
    assert "/execution.py" not in trace


@pytest.mark.parametrize(
    ("own", "given", "of_queue", "expected"),
    [
        (None, None, None, 300),
        (None, 5, None, 5),
        (60, None, None, 60),
        (60, 5, None, 5),
        (None, 0.5, None, 0.5),
        (None, None, 900, 900),
        (None, None, 7, 7),
        (60, None, 7, 60),
        (None, 900, 7, 900),
    ],
)
def test_the_nearest_time_limit_counts(
    queue: FairQueue, own: float | None, given: float | None, of_queue: float | None, expected: float
) -> None:
    work = noop(timeout=own)
    (work if given is None else work.using(timeout=given)).enqueue()
    config = queue.config.model_copy(update={"default_task_timeout": of_queue})
    assert run_of(queue, Services(queue.name, config, print, timeout=300)).timeout == expected


def test_a_task_pushed_without_a_limit_has_that_of_its_function(queue: FairQueue) -> None:
    noop(timeout=60)
    queue.push(Task.create("u", 3, {"args": [], "kwargs": {}}, name="work"))
    assert run_of(queue, Services(queue.name, queue.config, print, timeout=300)).timeout == 60


async def test_a_coroutine_runs_on_the_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work(n: int) -> int:
        return n + 1

    result = work.enqueue(4)
    queue.settle([await aexecute(run_of(queue, services))])
    assert queue.get_task(result.id).result == 5


def test_a_coroutine_task_can_run_without_a_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work() -> str:
        return current_task().name

    work.enqueue()
    assert execute(run_of(queue, services)).body.decode() == f'"{work.name}"'


async def test_a_canceled_coroutine_raises_into_its_worker(queue: FairQueue, services: Services) -> None:
    started = asyncio.Event()

    @task(name="single")
    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    @task(name="many", batch=5)
    async def many(items: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    work.enqueue()
    many.enqueue(1)
    for _ in range(2):
        started.clear()
        running = asyncio.create_task(aexecute(run_of(queue, services)))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(("error", "kind"), [(OSError("net"), "fail"), (SystemExit(1), "fail"), (Retry(5), "later")])
async def test_an_error_of_a_coroutine_decides_about_the_next_attempt(
    queue: FairQueue, services: Services, error: BaseException, kind: str
) -> None:
    @task
    async def work() -> None:
        raise error

    work.enqueue()
    outcome = await aexecute(run_of(queue, services))
    assert (outcome.kind, outcome.delay is not None) == (kind, True)
    assert current_task().id == ""
