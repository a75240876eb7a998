"""Run a task by hand, as a worker does, and declare tasks that fail or do nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync

from django_fairque import task
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.execution import Run, Services, execute, prepare
from tests.leases import pop


def run_next(queue: FairQueue, services: Services) -> str:
    """Pop a task, run it, settle it; what the engine made of it."""
    prepared = prepare(pop(queue), services)
    outcome: Outcome = execute(prepared) if isinstance(prepared, Run) else prepared
    return queue.settle([outcome]).statuses[0]


def run_of(queue: FairQueue, services: Services) -> Run:
    run = prepare(pop(queue), services)
    assert isinstance(run, Run)
    return run


def noop(name: str = "work", **options: Any) -> Any:
    """Declare a task that does nothing, whatever its arguments are."""

    @task(name=name, **options)
    def work(*args: Any, **kwargs: Any) -> None: ...

    return work


def runs_of(queue: FairQueue, services: Services, count: int = 10) -> list[Run]:
    """Prepare the runs of the next tasks."""
    prepared = [prepare(lease, services) for lease in queue.pop_batch(count, "w")]
    return [run for run in prepared if isinstance(run, Run)]


@async_to_sync
async def awaited(send: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Call an asynchronous method on a new event loop, and close the connections of that loop."""
    try:
        return await send(*args)
    finally:
        await aclose_queues()


def raising(error: BaseException, **options: Any) -> Callable[..., Any]:
    @task(name="failing", **options)
    def work() -> None:
        raise error

    enqueue: Callable[..., Any] = work.enqueue
    return enqueue


def run_next_of(queue: FairQueue, services: Services, error: BaseException, **options: Any) -> str:
    raising(error, **options)()
    return run_next(queue, services)
