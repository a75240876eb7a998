"""`AsyncWorker` runs tasks on the event loop of the program that awaits it. Threads of a `Worker` do all other work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.worker.execution.event_loop import RunningLoop

from .worker import Worker, stop_at_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from django_fairque.conf import FairQueueConfig, WorkerConfig
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerArguments


TASK_CANCEL_REPEAT_SECONDS = 5.0
"""Seconds after which a coroutine is canceled again if it was canceled and has not ended, for example because it cleans
up."""
LAST_REPORT_SECONDS = 1.0
"""Seconds that threads with interrupted tasks have to report the outcomes. Then the worker stops without these
threads."""


class AsyncWorker:
    """Runs ``async def`` tasks on the running event loop, and other tasks in threads.

    ``queues`` and ``arguments`` are those of `Worker`, without ``max_memory_mb``. Raises `ConfigurationError` in the
    same cases as `Worker`.

    Threads fetch tasks, renew leases and report outcomes, over separate connections. These threads continue while a
    task blocks the loop. The loop belongs to the program: a task that lets `SystemExit` through, or stops the loop,
    ends the program (`Worker` and ``fairque_worker`` prevent this).
    """

    def __init__(
        self,
        queues: Sequence[str | FairQueue] | WorkerConfig | FairQueueConfig | None = None,
        **arguments: Unpack[WorkerArguments],
    ) -> None:
        self._worker = _WorkerThreads(queues, **arguments)
        self.options = self._worker.options
        if self.options.max_memory_mb:
            raise ConfigurationError("max_memory_mb is for Worker: a coroutine can't give its process up")

    async def run(self, *, handle_signals: bool = True) -> None:
        """Work until `stop`, or until a limit or the end of a burst is reached. Call it once.

        ``handle_signals`` (default: True) calls `stop` at SIGTERM and SIGINT, and at a second one gives back running tasks at
        once. Signals are handled only in the main thread, and a handler that the program has set stays.
        """
        with stop_at_signals(self._worker.stop_at_signal) if handle_signals else nullcontext():
            await self._run()

    async def _run(self) -> None:
        self._worker.use_loop(RunningLoop())
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(1, "fairque-worker")
        end = loop.run_in_executor(threads, partial(self._worker.run, handle_signals=False))
        threads.shutdown(wait=False)
        waiting = _WaitForEnd(_wait_for(end), loop=loop)
        waiting.on_cancel = self._worker.cancel
        await waiting

    def stop(self) -> None:
        """Begin to stop: fetch nothing more, give back tasks that have not begun, and wait for running tasks. Can be
        called from any thread.
        """
        self._worker.stop()


class _WaitForEnd(asyncio.Task[None]):
    """Waits for the end of the worker. A program that ends cancels `AsyncWorker.run`, and often all other coroutines at
    the same time. Among these are the coroutines of tasks, which must be given back, so ``on_cancel`` is called before
    any coroutine continues.
    """

    on_cancel: Callable[[], object]

    def cancel(self, msg: Any | None = None) -> bool:
        self.on_cancel()
        return super().cancel(msg)


async def _wait_for(end: asyncio.Future[None]) -> None:
    """Wait until the worker has given back all its tasks. A cancellation does not end this wait; it is raised
    afterwards.
    """
    cancellation: asyncio.CancelledError | None = None
    while not end.done():
        try:
            await asyncio.wait([end])
        except asyncio.CancelledError as error:  # noqa: PERF203 - once or twice
            cancellation = error
    end.result()
    if cancellation is not None:
        raise cancellation


class _WorkerThreads(Worker):
    """The threads of an `AsyncWorker`. After they have ended, no coroutine of the worker's tasks runs on the program's
    loop.
    """

    _loop: RunningLoop
    _must_end = False
    """Whether the worker must give back its tasks at once: the program canceled it or stopped the loop, or the shutdown
    timeout is over."""
    _cancel_due = 0.0
    _leave_at = 0.0

    def use_loop(self, loop: RunningLoop) -> None:
        self._loop = self._core.slot_pool.loop = loop

    def stop_at_signal(self) -> None:
        self._stop_at_signal()

    def cancel(self) -> None:
        """Give back all tasks now. Runs on the event loop."""
        if not self._must_end:
            self._cancel_due = monotonic() + TASK_CANCEL_REPEAT_SECONDS
            self._must_end = True
            self._core.slot_pool.give_back()
            self._loop.cancel()
            self.stop()

    def _is_late(self) -> bool:
        has_stopped, now = self._loop.has_stopped(), monotonic()
        if has_stopped:
            self.stop()
        self._must_end = self._must_end or has_stopped or super()._is_late()
        if not self._must_end:
            return False
        if not self._leave_at or self._loop.is_used:
            self._leave_at = now + LAST_REPORT_SECONDS
        self._core.slot_pool.give_back()
        if now >= self._cancel_due:
            again, self._cancel_due = bool(self._cancel_due), now + TASK_CANCEL_REPEAT_SECONDS
            self._loop.call_soon(partial(self._loop.cancel, again=again))
        return now >= self._leave_at
