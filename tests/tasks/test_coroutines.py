"""Coroutine tasks: on a loop, without one, canceled, failing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from django_fairque import Retry, current_task, task
from django_fairque.tasks.execution import Run, aexecute, execute, prepare

from .helpers import run_of

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.execution import Services


async def test_a_coroutine_runs_on_the_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work(n: int) -> int:
        return n + 1

    work.enqueue(4)
    lease = queue.pop("w")
    assert lease is not None
    prepared = prepare(lease, services)
    assert isinstance(prepared, Run)
    queue.settle([await aexecute(prepared)])
    assert queue.get_task(lease.task_id).result == 5


def test_a_coroutine_task_can_run_without_a_loop(queue: FairQueue, services: Services) -> None:
    @task
    async def work() -> str:
        return current_task().name

    work.enqueue()
    assert execute(run_of(queue, services)).body.decode() == f'"{work.name}"'


async def test_a_canceled_coroutine_is_for_its_worker_to_explain(queue: FairQueue, services: Services) -> None:
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
async def test_what_a_coroutine_raises_decides_as_well(
    queue: FairQueue, services: Services, error: BaseException, kind: str
) -> None:
    @task
    async def work() -> None:
        raise error

    work.enqueue()
    outcome = await aexecute(run_of(queue, services))
    assert (outcome.kind, outcome.delay is not None) == (kind, True)
    assert current_task().id == ""
