"""Tasks that are stopped from outside, by a time limit, a cancellation or the end of their worker: what receivers hear."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from django_fairque import AsyncWorker, Worker
from django_fairque.backends.compat import TaskResultStatus, task, task_finished
from django_fairque.conf import aclose_queues
from django_fairque.engine.queue.queue import FairQueue
from tests.worker.conftest import eventually

from .conftest import Configure

WORKERS = pytest.mark.parametrize("kind", [Worker, AsyncWorker])
begun = threading.Event()
"""Set when a task of this module has begun."""


@task
def stay() -> None:
    begun.set()
    while True:
        time.sleep(0.005)


@task
async def stay_async() -> None:
    begun.set()
    await asyncio.Event().wait()


@task
async def tidy_up() -> str:
    """Takes a cancellation for its end."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "tidied up"
    return "never"


@task
async def await_one_that_was_canceled() -> None:
    begun.set()
    future: asyncio.Future[None] = asyncio.Future()
    future.cancel()
    await future


EITHER = pytest.mark.parametrize("work", [stay, stay_async], ids=lambda work: work.name)


@pytest.fixture(autouse=True)
def ends() -> Iterator[list[Any]]:
    """Record for each `task_finished` the status, the attempts, and the exception being handled, with its functions."""
    begun.clear()
    received: list[Any] = []

    def finished(task_result: Any, **_: Any) -> None:
        kind, _error, trace = sys.exc_info()
        last = task_result.errors[-1].exception_class_path.rpartition(".")[2] if task_result.errors else None
        assert last == (kind and kind.__name__)
        functions = {frame.name for frame in traceback.extract_tb(trace)}
        received.append((task_result.status, task_result.attempts, kind and kind.__name__, functions))

    task_finished.connect(finished)
    yield received
    task_finished.disconnect(finished)


async def run(worker: Worker | AsyncWorker) -> None:
    await asyncio.wait_for(worker.run() if isinstance(worker, AsyncWorker) else asyncio.to_thread(worker.run), 20)
    await aclose_queues()


@WORKERS
@EITHER
async def test_a_time_limit_finishes_a_task_while_its_exception_is_handled(
    queue: FairQueue, ends: list[Any], kind: Any, work: Any
) -> None:
    result = work.enqueue()
    await run(kind(burst=True, task_timeout=0.3))
    ((status, attempts, error, functions),) = ends
    assert (status, attempts, error) == (TaskResultStatus.FAILED, 1, "SoftTimeLimitExceeded")
    assert work.name in functions
    stored = work.get_result(result.id)
    assert [error.exception_class_path for error in stored.errors] == [
        "django_fairque.tasks.errors.SoftTimeLimitExceeded"
    ]
    assert f"in {work.name}" in stored.errors[0].traceback


@WORKERS
@EITHER
async def test_a_time_limit_before_the_last_attempt_finishes_nothing(
    queue: FairQueue, configure: Configure, ends: list[Any], kind: Any, work: Any
) -> None:
    configure(MAX_RETRIES=1)
    work.enqueue()
    await run(kind(burst=True, task_timeout=0.3))
    assert [(attempts, error) for _, attempts, error, _ in ends] == [(2, "SoftTimeLimitExceeded")]


@WORKERS
async def test_a_coroutine_may_return_at_its_time_limit(queue: FairQueue, ends: list[Any], kind: Any) -> None:
    result: Any = tidy_up.enqueue()
    await run(kind(burst=True, task_timeout=0.3))
    assert [(status, error) for status, _, error, _ in ends] == [(TaskResultStatus.SUCCESSFUL, None)]
    await result.arefresh()
    assert result.return_value == "tidied up"
    await aclose_queues()


@WORKERS
async def test_a_coroutine_that_cancels_itself_has_failed(queue: FairQueue, ends: list[Any], kind: Any) -> None:
    result = await_one_that_was_canceled.enqueue()
    await run(kind(burst=True))
    ((status, _attempts, error, functions),) = ends
    assert (status, error) == (TaskResultStatus.FAILED, "CancelledError")
    assert "await_one_that_was_canceled" in functions
    stored = await_one_that_was_canceled.get_result(result.id)
    assert [error.exception_class for error in stored.errors] == [asyncio.CancelledError]


async def test_a_coroutine_that_is_canceled_from_inside_fails_in_a_worker_that_was_idle(queue: FairQueue) -> None:
    worker = AsyncWorker()
    running = asyncio.ensure_future(run(worker))
    await asyncio.to_thread(eventually, queue.workers)
    await_one_that_was_canceled.enqueue()
    await asyncio.to_thread(eventually, lambda: queue.get_stats(0).states["failed"] == 1)
    worker.stop()
    await running


@WORKERS
@EITHER
async def test_a_task_that_is_canceled_while_it_runs_does_not_finish(
    queue: FairQueue, ends: list[Any], kind: Any, work: Any
) -> None:
    result = work.enqueue()
    running = asyncio.ensure_future(run(kind(burst=True, lease_seconds=0.6)))
    await asyncio.to_thread(begun.wait, 20)
    queue.cancel(result.id)
    await running
    assert ends == []


@EITHER
async def test_a_task_returned_by_a_stopping_worker_is_not_finished(
    queue: FairQueue, ends: list[Any], work: Any
) -> None:
    result = work.enqueue()
    worker = AsyncWorker(shutdown_timeout=0.1)
    running = asyncio.ensure_future(run(worker))
    await asyncio.to_thread(begun.wait, 20)
    worker.stop()
    await running
    await asyncio.to_thread(eventually, lambda: work.get_result(result.id).status is TaskResultStatus.READY)
    assert ends == []
