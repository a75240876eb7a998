"""Running a task by hand, as a worker would, and a task that fails as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque import task
from django_fairque.tasks.execution import Run, execute, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.execution import Services


def run_next(queue: FairQueue, services: Services) -> str:
    """Pop a task, run it, settle it; what the engine made of it."""
    lease = queue.pop("w")
    assert lease is not None
    prepared = prepare(lease, services)
    outcome: Outcome = execute(prepared) if isinstance(prepared, Run) else prepared
    return queue.settle([outcome]).statuses[0]


def run_of(queue: FairQueue, services: Services) -> Run:
    lease = queue.pop("w")
    assert lease is not None
    run = prepare(lease, services)
    assert isinstance(run, Run)
    return run


def raising(error: BaseException, **options: Any) -> Callable[..., Any]:
    @task(name="failing", **options)
    def work() -> None:
        raise error

    enqueue: Callable[..., Any] = work.enqueue
    return enqueue


def run_next_of(queue: FairQueue, services: Services, error: BaseException, **options: Any) -> str:
    raising(error, **options)()
    return run_next(queue, services)
