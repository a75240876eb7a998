"""`TaskResult`: what one can know, and do, about a task that was sent."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from django_fairque.conf import aget_queue, get_queue
from django_fairque.engine.errors import TaskNotFoundError
from django_fairque.engine.records import TaskState

from .errors import TaskCanceledError, TaskFailedError, TaskNotFinishedError, TaskWaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.engine.lookup import Progress
    from django_fairque.engine.models import Task
    from django_fairque.engine.records import Attempt

    from .sending import Waiting

FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.25
"""Seconds between two looks of `TaskResult.wait`: doubling from the first to the longest."""


class TaskResult:
    """A handle on a task, by its ``id`` and the name of its ``queue``.

    ``state`` and what follows from it are as of the last `refresh` (which the first look does by itself);
    ``progress``, ``errors`` and ``position`` are read anew each time. Inside a transaction that has not committed
    the task is not known to the queue: its state is None.
    """

    def __init__(self, task_id: str, queue: str = "default", *, waiting: Waiting | None = None) -> None:
        self.id = task_id
        self.queue = queue
        self._waiting = waiting
        self._task: Task | None = None

    def __repr__(self) -> str:
        return f"<TaskResult {self.id!r}>"

    def sent_as(self, task_id: str) -> None:
        """The commit came; ``task_id`` is the id under which the work is known (that of a duplicate, maybe)."""
        self.id, self._waiting = task_id, None

    @property
    def task(self) -> Task | None:
        """The task as of the last look; None when the queue does not know it (yet, or any more)."""
        if self._task is None:
            self.refresh()
        return self._task

    @property
    def state(self) -> TaskState | None:
        task = self.task
        return None if task is None else task.state

    def refresh(self) -> TaskResult:
        """Look again."""
        try:
            self._task = get_queue(self.queue).get_task(self.id)
        except TaskNotFoundError:
            self._task = None
        return self

    def result(self) -> Any:
        """What the task returned.

        Raises:
            TaskNotFinishedError: it has not ended.
            TaskFailedError, TaskCanceledError: it ended without a result.
            TaskNotFoundError: the queue does not know it (any more).
        """
        self.refresh()
        return self._value(self._reason() if self._failed else "")

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the task ends and return its `result`; `TaskWaitTimeoutError` after ``timeout`` seconds."""
        for pause in self._pauses(timeout):
            self.refresh()
            if self._has_ended:
                break
            time.sleep(pause)
        return self._value(self._reason() if self._failed else "")

    def cancel(self) -> bool:
        """Cancel the task, or not send it when its transaction has not committed; False if it had ended."""
        if self._waiting is not None and self._waiting.drop(self):
            return True
        return get_queue(self.queue).cancel(self.id)

    @property
    def progress(self) -> Progress | None:
        return get_queue(self.queue).get_progress(self.id)

    @property
    def errors(self) -> list[Attempt]:
        """The attempts that did not finish it, and what brought it back, oldest first."""
        return get_queue(self.queue).history(self.id)

    @property
    def position(self) -> int | None:
        """How many tasks of the same user are before it; None unless it is QUEUED."""
        return get_queue(self.queue).position(self.id)

    async def astate(self) -> TaskState | None:
        if self._task is None:
            await self.arefresh()
        return None if self._task is None else self._task.state

    async def arefresh(self) -> TaskResult:
        queue = await aget_queue(self.queue)
        try:
            self._task = await queue.get_task(self.id)
        except TaskNotFoundError:
            self._task = None
        return self

    async def aresult(self) -> Any:
        await self.arefresh()
        return self._value(await self._areason() if self._failed else "")

    async def await_(self, timeout: float | None = None) -> Any:
        for pause in self._pauses(timeout):
            await self.arefresh()
            if self._has_ended:
                break
            await asyncio.sleep(pause)
        return self._value(await self._areason() if self._failed else "")

    async def acancel(self) -> bool:
        if self._waiting is not None and self._waiting.drop(self):
            return True
        return await (await aget_queue(self.queue)).cancel(self.id)

    async def aprogress(self) -> Progress | None:
        return await (await aget_queue(self.queue)).get_progress(self.id)

    async def aerrors(self) -> list[Attempt]:
        return await (await aget_queue(self.queue)).history(self.id)

    async def aposition(self) -> int | None:
        return await (await aget_queue(self.queue)).position(self.id)

    @property
    def _has_ended(self) -> bool:
        return self._task is not None and self._task.state.is_ended

    @property
    def _failed(self) -> bool:
        return self._task is not None and self._task.state is TaskState.FAILED

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """How long to sleep after each look that found no end; raises when the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = FIRST_PAUSE
        while True:
            left = pause if end is None else end - time.monotonic()
            yield max(0.0, min(pause, left))
            if end is not None and time.monotonic() >= end and not self._has_ended:
                state = "not known" if self._task is None else self._task.state.value
                raise TaskWaitTimeoutError(f"task {self.id!r} had not ended after {timeout} s; it is {state}")
            pause = min(2 * pause, LONGEST_PAUSE)

    def _reason(self) -> str:
        return _last_error(self.errors)

    async def _areason(self) -> str:
        return _last_error(await self.aerrors())

    def _value(self, reason: str) -> Any:
        task = self._task
        if task is None:
            raise TaskNotFoundError(
                f"queue {self.queue!r} does not know task {self.id!r}: its transaction has not committed, or it has been "
                "forgotten"
            )
        if task.state is TaskState.FINISHED:
            return task.result
        if task.state is TaskState.FAILED:
            raise TaskFailedError(self.id, reason)
        if task.state is TaskState.CANCELED:
            raise TaskCanceledError(f"task {self.id!r} was canceled")
        raise TaskNotFinishedError(f"task {self.id!r} has not ended, it is {task.state.value}; use wait()")


def _last_error(errors: list[Attempt]) -> str:
    return next((attempt.error for attempt in reversed(errors) if attempt.error), "no reason was recorded")
