"""The event loop on which a worker's ``async def`` tasks run, in a thread of its own.

The slot that took such a task waits here for its end. So coroutines and threads share one limit, and nothing else in
the worker needs to know of two kinds of tasks.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_fairque.conf import aclose_queues
from django_fairque.tasks.stopping import Stop, stopped

from . import database

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable


async def cancel_all(tasks: Iterable[asyncio.Future[None]], again: float) -> None:
    """Cancel these until they have ended, anew after ``again`` seconds each time.

    Once is not always enough. `asyncio.wait_for`, with which redis-py sends, drops a cancellation that comes in the moment
    in which what it waits for is done (https://github.com/python/cpython/issues/86296; mended in Python 3.12).
    """
    left = all_of_them = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again)
    # Or asyncio would complain that nobody looked at what they raised.
    await asyncio.gather(*all_of_them, return_exceptions=True)


async def _tidy() -> None:
    """As `database.tidy`, in the thread in which Django runs the queries of coroutines."""
    if database.is_open_elsewhere():
        await sync_to_async(database.tidy)()


class Interrupted(Exception):  # noqa: N818 - says what was done to it
    """The coroutine was stopped from outside; ``kind`` says with what."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__(kind)
        self.kind = kind


class Stoppable(Stop):
    """A coroutine, in an `asyncio.Task` of its own, with a time limit. ``kind`` says with what it was stopped."""

    def __init__(self, begin: Callable[[], Awaitable[Any]], timeout: float, on_timeout: type[BaseException]) -> None:
        super().__init__()
        self._begin = begin
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> Any:
        """What the coroutine returns."""
        stopped.set(self)
        self._task = asyncio.current_task()
        await _tidy()  # before the limit begins: that thread may be busy with another's query
        timer = asyncio.get_running_loop().call_later(self._timeout, self.stop, self._on_timeout)
        try:
            return await self._begin()
        finally:
            timer.cancel()
            await _tidy()

    def stop(self, kind: type[BaseException]) -> None:
        """On the loop: cancel the coroutine, once."""
        if self.kind is None and self._task is not None and not self._task.done():
            self.kind = kind
            self._task.cancel()


class Job(Stoppable):
    """One coroutine and the slot that waits for it."""

    def __init__(self, begin: Callable[[], Awaitable[Any]], timeout: float, on_timeout: type[BaseException]) -> None:
        super().__init__(begin, timeout, on_timeout)
        self._ended = _thread.allocate_lock()
        self._ended.acquire()

    def start(self) -> None:
        """On the loop."""
        self._task = asyncio.get_running_loop().create_task(self.run())
        self._task.add_done_callback(lambda _: self._ended.release())

    def wait(self) -> Any:
        """The slot's side; raises `Interrupted` if it was stopped and did not come to an end of its own."""
        self._ended.acquire()
        assert self._task is not None  # noqa: S101 - its end released the lock
        if self._task.cancelled():
            raise Interrupted(self.kind or asyncio.CancelledError)
        return self._task.result()


class EventLoop:
    """Starts with the first coroutine."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, begin: Callable[[], Awaitable[Any]], timeout: float, *, on_timeout: type[BaseException]) -> Job:
        loop = self._loop or self._start()
        job = Job(begin, timeout, on_timeout)
        loop.call_soon_threadsafe(job.start)
        return job

    def interrupt(self, job: Job, kind: type[BaseException]) -> None:
        assert self._loop is not None  # noqa: S101 - the job was made on it
        self._loop.call_soon_threadsafe(job.stop, kind)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(target=self._run, args=[loop], name="fairque-loop", daemon=True).start()
                self._loop = loop
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(aclose_queues())  # of tasks that enqueued others
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    def end(self) -> None:
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
