"""`TaskResult` gives access to the state and result of a task that was sent. This module also cancels tasks.

All parts of the package that use Django cancel tasks with the functions of this module, because these send the signal
`task_canceled` for each task. The engine's `cancel` sends no signal. If the signal has no receiver, no additional
requests are made.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol

from asgiref.sync import sync_to_async

from django_fairque import conf, signals
from django_fairque.engine.model.durations import duration
from django_fairque.engine.model.errors import FairQueueError, TaskNotFoundError
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.engine.scripting.operations import Steps, drive, drive_async, slices
from django_fairque.safely import get_logger
from django_fairque.signals import log_receiver_errors
from django_fairque.tasks.errors import (
    NamesReplacements,
    TaskCanceledError,
    TaskFailedError,
    TaskNotFinishedError,
    TaskWaitTimeoutError,
)
from django_fairque.tasks.value_types import load_result

if TYPE_CHECKING:
    from datetime import timedelta

    from typing_extensions import TypeVar

    from django_fairque.conf.current import Interceptor
    from django_fairque.engine.inspection.task_lookup import Note, Progress
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.start_estimates import StartEstimate

    R_co = TypeVar("R_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class CommitHook(Protocol):
    """The object that sends a task when the transaction on ``database`` commits."""

    @property
    def database(self) -> str: ...

    def drop(self, result: TaskResult) -> bool | None:
        """Remove the task from the tasks to send. Return True if this was done now, False if it was done before, and
        None if the task was already sent.
        """
        ...


def get_result_queue(name: str, interceptor: Interceptor | None) -> FairQueue:
    """Return the queue with this name. If tests intercept tasks, return the interceptor's replacement."""
    return conf.get_queue(name) if interceptor is None else interceptor.queue(name)


async def aget_result_queue(name: str, interceptor: Interceptor | None) -> AsyncFairQueue:
    """Return the asynchronous queue with this name. If tests intercept tasks, return the interceptor's replacement."""
    return await conf.aget_queue(name) if interceptor is None else interceptor.aqueue(name)


class Handle(NamesReplacements):
    """The base class of handles, which send requests to a queue. If tasks are intercepted when a handle is made, it
    always sends requests to the interceptor.
    """

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._interceptor = conf.current_interceptor()

    def _queue_to_ask(self) -> FairQueue:
        return get_result_queue(self.queue, self._interceptor)

    async def _aqueue_to_ask(self) -> AsyncFairQueue:
        return await aget_result_queue(self.queue, self._interceptor)

    def _pauses(self, timeout: float | timedelta | None, first: float, longest: float) -> Iterator[float]:
        """Yield the seconds to sleep after each request, doubled each time. After the timeout, yield 0 once, for a last
        request.
        """
        if timeout is None and self._interceptor is not None:
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


FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.005, 0.25
"""Seconds between two requests of `TaskResult.wait`. The pause doubles from the first to the longest value."""


class TaskResult(Handle, Generic[R_co]):
    """A handle on a task, by its ``id`` (``task_id``) and the name of its ``queue``, ``"default"`` by default.
    Only the package passes ``waiting`` (the commit hook for which the task waits) and ``name`` (the task's name).

    For type checkers, the class has the type of the function's result as parameter: ``TaskResult[Decimal]``.

    ``state``, ``progress``, ``errors`` and ``position`` send a request each time. ``task`` is the whole record as
    ``state``, `refresh`, `result` or `wait` has read it last; if none has, ``task`` reads it. While a task waits for
    the commit of a transaction, the queue does not know it. Then its state is None, and stays None if the transaction
    is rolled back. With ``unique_for`` or ``debounce`` the id may change at the commit, if the queue already has an
    equal task: then the id is that of the earlier task.
    """

    def __init__(
        self, task_id: str, queue: str = "default", *, waiting: CommitHook | None = None, name: str = ""
    ) -> None:
        super().__init__(queue)
        self.id = task_id
        self._name = name
        self._waiting = waiting
        self._task: Task | None = None

    def __repr__(self) -> str:
        """Return the task's name, its id, and the state that was read last. Sends no request."""
        name = self._name if self._task is None else self._task.name
        state = "waits for the commit" if self._waiting else "state not read yet"
        if self._task is not None:
            state = f"{self._task.state.value} when it was read last"
        return f"<TaskResult {name + ' ' if name else ''}{self.id!r}: {state}>"

    @property
    def is_waiting(self) -> bool:
        """Whether the task waits for the commit of a transaction."""
        return self._waiting is not None

    def record_task_id(self, task_id: str) -> None:
        """Record that the transaction has committed. ``task_id`` is the id of the task in the queue. For a duplicate it
        is the id of the earlier task.
        """
        self.id, self._waiting = task_id, None

    @property
    def task(self) -> Task | None:
        """The task's record as it was read last, or now if it was not read yet; None if the queue did not know the task."""
        if self._task is None:
            self.refresh()
        return self._task

    @property
    def state(self) -> TaskState | None:
        """The task's current state; None if the queue does not know the task (before the commit, or after its
        retention).
        """
        self.refresh()
        return self._state

    def refresh(self) -> TaskResult[R_co]:
        """Read the task's record again. Returns this handle."""
        try:
            self._task = self._queue_to_ask().get_task(self.id)
        except TaskNotFoundError:
            self._task = None
        return self

    def result(self) -> R_co:
        """Return the value that the task returned.

        The value has the type of the function's annotation if the task is declared in this process; else it is JSON.
        Raises `TaskNotFinishedError` if the task has not ended; `TaskFailedError` or `TaskCanceledError` if it ended
        without a result; `TaskNotFoundError` if the queue does not know the task; `TaskSerializationError` if the
        result no longer fits the annotation (``task.result`` contains the JSON).
        """
        self.refresh()
        return self._value(self.errors if self._state is TaskState.FAILED else [])

    def wait(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the task ends. Returns its `result`, or raises the errors of `result`.

        ``timeout`` is the longest wait in seconds or as a timedelta; None for no limit. Raises `TaskWaitTimeoutError`
        when the time is over. If the task's transaction has not committed, the method does not wait.
        """
        for pause in self._pauses(timeout, FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS):
            self.refresh()
            if not self._is_under_way:
                return self._value(self.errors if self._state is TaskState.FAILED else [])
            time.sleep(pause)
        raise self._too_late(timeout)

    def cancel(self) -> bool:
        """Cancel the task. If its transaction has not committed, the task is not sent. Returns True if the task was
        canceled, and False if it had already ended.

        Raises `TaskNotFoundError` if the queue does not know the task.
        """
        if self._waiting is not None and (is_dropped := self._waiting.drop(self)) is not None:
            return is_dropped
        return cancel(self._queue_to_ask(), self.id)

    @property
    def progress(self) -> Progress | None:
        """The progress that the task has reported; None if the task has reported none or the queue does not know it."""
        return self._queue_to_ask().get_progress(self.id)

    @property
    def errors(self) -> list[Attempt]:
        """The attempts that failed and the events that put the task back into the queue, the oldest first."""
        return self._queue_to_ask().history(self.id)

    @property
    def position(self) -> int | None:
        """The number of tasks of the same user that come before this task; None unless the task is QUEUED. Raises
        `TaskNotFoundError` if the queue does not know the task.
        """
        return self._queue_to_ask().position(self.id)

    def starts_in(self) -> StartEstimate:
        """Return an estimate of the seconds until the task starts, or the reason why there is none: it is not QUEUED, or paused.
        Costs the server about as much as a push: call this at most every five seconds for each task that a page shows.
        Raises `TaskNotFoundError` if the queue does not know the task.
        """
        return self._queue_to_ask().starts_in(self.id)

    async def astate(self) -> TaskState | None:
        """Return the task's current `state`."""
        await self.arefresh()
        return self._state

    async def arefresh(self) -> TaskResult[R_co]:
        """Read the task's record again. Returns this handle."""
        queue = await self._aqueue_to_ask()
        try:
            self._task = await queue.get_task(self.id)
        except TaskNotFoundError:
            self._task = None
        return self

    async def aresult(self) -> R_co:
        """Return the value that the task returned. Raises the errors of `result`."""
        await self.arefresh()
        return self._value(await self.aerrors() if self._state is TaskState.FAILED else [])

    async def await_(self, timeout: float | timedelta | None = None) -> R_co:
        """Await the end of the task. Returns its `result`. ``timeout`` and the errors are the same as for `wait`."""
        for pause in self._pauses(timeout, FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS):
            await self.arefresh()
            if not self._is_under_way:
                return self._value(await self.aerrors() if self._state is TaskState.FAILED else [])
            await asyncio.sleep(pause)
        raise self._too_late(timeout)

    async def acancel(self) -> bool:
        """Cancel the task. Returns whether it was canceled. Raises `TaskNotFoundError` in the same cases as
        `cancel`.
        """
        if self._waiting is not None and (is_dropped := await sync_to_async(self._waiting.drop)(self)) is not None:
            return is_dropped
        return await acancel(await self._aqueue_to_ask(), self.id)

    async def aprogress(self) -> Progress | None:
        """Return the `progress` that the task has reported."""
        return await (await self._aqueue_to_ask()).get_progress(self.id)

    async def aerrors(self) -> list[Attempt]:
        """Return the failed attempts and the events that put the task back into the queue (`errors`)."""
        return await (await self._aqueue_to_ask()).history(self.id)

    async def aposition(self) -> int | None:
        """Return the number of tasks of the same user that come before this task (`position`). Raises
        `TaskNotFoundError` in the same cases as `position`.
        """
        return await (await self._aqueue_to_ask()).position(self.id)

    async def astarts_in(self) -> StartEstimate:
        """Return an estimate of the seconds until the task starts. Raises `TaskNotFoundError` as `starts_in` does."""
        return await (await self._aqueue_to_ask()).starts_in(self.id)

    @property
    def _state(self) -> TaskState | None:
        return None if self._task is None else self._task.state

    @property
    def _is_under_way(self) -> bool:
        return self._task is not None and not self._task.state.is_ended

    def _value(self, errors: Sequence[Attempt]) -> R_co:
        task = self._task
        if task is None:
            raise self._not_there()
        if task.state is TaskState.FINISHED and task.result_bytes_removed:
            raise TaskNotFoundError(
                f"task {self.id!r} has finished, and its result ({task.result_bytes_removed:,} bytes) was removed, because the "
                "results of its user exceed max_result_bytes; read results sooner, return references to large values, or raise "
                "the limit"
            )
        if task.state is TaskState.FINISHED:
            value: R_co = load_result(task.name, task.result)
            return value
        if task.state is TaskState.FAILED:
            reasons = (attempt.error for attempt in reversed(errors) if attempt.error)
            raise TaskFailedError(self.id, next(reasons, "no reason was recorded"))
        if task.state is TaskState.CANCELED:
            raise TaskCanceledError(f"task {self.id!r} was canceled")
        raise TaskNotFinishedError(f"task {self.id!r} has not ended, it is {task.state.value}; use wait()")

    def _not_there(self) -> FairQueueError:
        if self._waiting is None:
            return TaskNotFoundError(f"queue {self.queue!r} does not know task {self.id!r}; it may have been forgotten")
        return TaskNotFinishedError(
            f"task {self.id!r} is sent when the transaction on database {self._waiting.database!r} commits; it has not, "
            "or it was rolled back, or the server refused the task (then that was raised and logged)"
        )

    def _too_late(self, timeout: float | timedelta | None) -> TaskWaitTimeoutError:
        state = "not known" if self._state is None else self._state.value
        why = (
            f": manage.py fairque_task show {self.id} --queue {self.queue} names the reason"
            if state == "queued"
            else ""
        )
        return TaskWaitTimeoutError(f"task {self.id!r} had not ended after {timeout} s; it is {state}{why}")


CANCELED_TASKS_PER_READ = 200
"""Maximum number of canceled tasks that one request reads."""

MAX_TASKS_PER_CANCEL = 10_000
"""Maximum number of tasks of a user that are canceled before the signals for them are sent."""

logger = get_logger("django_fairque.tasks")


def cancel(queue: FairQueue, task_id: str, reason: str = "") -> bool:
    """Cancel a task. Return False if it had already ended. Raise `TaskNotFoundError` if the queue does not know it."""
    is_canceled = queue.cancel(task_id, reason=reason)
    if is_canceled:
        send_task_canceled(queue, [task_id])
    return is_canceled


async def acancel(queue: AsyncFairQueue, task_id: str) -> bool:
    is_canceled = await queue.cancel(task_id)
    if is_canceled:
        await asend_task_canceled(queue, [task_id])
    return is_canceled


def cancel_many(queue: FairQueue, task_ids: Sequence[str], reason: str) -> int:
    """Cancel the given tasks that have not ended. Return the number of canceled tasks."""
    return cancel_and_send_signals(queue, lambda note: queue.cancel_many(task_ids, reason=reason, note=note))


def cancel_run(queue: FairQueue, run_id: str) -> int:
    """Cancel the tasks of a run that have not ended. Return the number of canceled tasks."""
    return cancel_and_send_signals(queue, lambda note: queue.cancel_run(run_id, note=note))


async def acancel_run(queue: AsyncFairQueue, run_id: str) -> int:
    if not has_canceled_receivers():
        return await queue.cancel_run(run_id)
    ids: list[str] = []
    try:
        return await queue.cancel_run(run_id, note=ids.extend)
    finally:
        await asend_task_canceled(queue, ids)


def purge_user(queue: FairQueue, user_id: str) -> int:
    """Cancel all waiting tasks of a user. Return the number of tasks."""
    user, total, done = queue.user(user_id), 0, MAX_TASKS_PER_CANCEL
    while done == MAX_TASKS_PER_CANCEL:
        done = cancel_and_send_signals(queue, lambda note: user.purge(MAX_TASKS_PER_CANCEL, note=note))
        total += done
    return total


def cancel_and_send_signals(queue: FairQueue, act: Callable[[Note], int]) -> int:
    """Cancel tasks, and send signals for the canceled tasks, even if an error ends the cancellation."""
    if not has_canceled_receivers():
        return act(None)
    ids: list[str] = []
    try:
        return act(ids.extend)
    finally:
        send_task_canceled(queue, ids)


def has_canceled_receivers() -> bool:
    """Return whether `task_canceled` has receivers."""
    return bool(signals.task_canceled.receivers)


def send_task_canceled(queue: FairQueue, task_ids: Sequence[str]) -> None:
    """Send `task_canceled` for canceled tasks."""
    drive(_send_canceled(queue, task_ids, signals.task_canceled.send_robust))


async def asend_task_canceled(queue: AsyncFairQueue, task_ids: Sequence[str]) -> None:
    """Send `task_canceled` for canceled tasks from a coroutine. Synchronous receivers run in the thread for synchronous
    code.
    """
    await drive_async(_send_canceled(queue, task_ids, signals.task_canceled.asend_robust))


def _send_canceled(queue: FairQueue | AsyncFairQueue, task_ids: Sequence[str], send: Callable[..., Any]) -> Steps:
    for some in slices(task_ids if has_canceled_receivers() else (), CANCELED_TASKS_PER_READ):
        try:
            tasks = yield queue.get_tasks(some)
        except FairQueueError as error:  # the tasks are canceled nevertheless, so the caller gets no error
            logger.warning(
                "queue %s: task_canceled was not sent for %d canceled tasks (%s, …), which could not be read: %s",
                *(queue.name, len(some), some[0], error),
            )
            continue
        for task in tasks.values():
            results = yield send(sender=task.name, task=task, task_id=task.task_id, queue=queue.name)
            log_receiver_errors(results)
