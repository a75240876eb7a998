"""What the handles on tasks and runs share: whom they ask, and how long they wait."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Protocol

from django_fairque.engine.model.durations import duration

from .errors import TaskWaitTimeoutError
from .queues import aget_queue, get_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue

    from .options import TaskOptions
    from .results import TaskResult


class Outlet(Protocol):
    """Where tasks go instead of to their queue: tests put one here (`django_fairque.testing`)."""

    def take(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]: ...

    def queue(self, name: str) -> FairQueue:
        """What handles ask instead of the queue of this name."""
        ...

    def aqueue(self, name: str) -> AsyncFairQueue: ...


outlets: list[Outlet] = []
"""The last one counts."""


def current_outlet() -> Outlet | None:
    """Where tasks go now; None for to their queues."""
    return outlets[-1] if outlets else None


def queue_for(name: str, outlet: Outlet | None) -> FairQueue:
    """The queue of that name, or what the outlet answers with in its place."""
    return get_queue(name) if outlet is None else outlet.queue(name)


async def aqueue_for(name: str, outlet: Outlet | None) -> AsyncFairQueue:
    """The same for coroutines."""
    return await aget_queue(name) if outlet is None else outlet.aqueue(name)


class Handle:
    """Asks the queue of that name; one that is made where tasks go to an outlet, always that."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._outlet = current_outlet()

    def _asked(self) -> FairQueue:
        return queue_for(self.queue, self._outlet)

    async def _aasked(self) -> AsyncFairQueue:
        return await aqueue_for(self.queue, self._outlet)

    def _pauses(self, timeout: float | timedelta | None, first: float, longest: float) -> Iterator[float]:
        """How long to sleep after each look, doubling; ends when the time is over and there was a last look."""
        if timeout is None and self._outlet is not None:
            yield 0.0
            raise TaskWaitTimeoutError(
                f"{self!r} has not ended, and nothing runs it while tasks are captured: call run() of what captures them "
                "first, or give a timeout if something else does"
            )
        end = math.inf if timeout is None else time.monotonic() + duration(timeout, "timeout")
        pause = first
        while (left := end - time.monotonic()) > 0:
            yield min(pause, left)
            pause = min(2 * pause, longest)
        yield 0.0
