"""Isolates each task from the next: a new context (`contextvars.Context`) for each, and checked database connections.

A new context is empty instead of a copy of the worker's context: some libraries keep objects in context variables and change them
in place (`decimal` its context, sentry-sdk its scopes), and all copies would share these objects. Only Django's caches pass from
one task to the next, because a cache has connections.

Database connections are checked before and after each task, as Django does for each request; before a task that follows another
one at once, only if code of the project has run in between (`ConnectionChecks`). Looking for connections costs more than a small
task, so Django's `connection_created` signal sets a flag in each thread that has opened one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.cache import caches
from django.db import connections
from django.db.backends.signals import connection_created

from django_fairque.engine.model.ids import this_process
from django_fairque.worker.common import process_copies as copies
from django_fairque.worker.common.log import logger


class _ThreadState(threading.local):
    has_opened_connections = False
    contexts: TaskContexts | None = None


_thread_state = _ThreadState()


def _on_connection_created(**_: Any) -> None:
    _thread_state.has_opened_connections = True
    contexts = _coroutine_contexts.get()
    if contexts is not None:
        contexts.are_connections_open = True


connection_created.connect(_on_connection_created, dispatch_uid="django_fairque.worker")


def close_connections() -> None:
    """Close the database connections of this thread, which ends."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.connection is not None:  # Django never closes a SQLite database in memory: tests have those
            connection.connection.close()


def clean_up_connections(*, close: bool = False) -> None:
    """Close the connections that this thread should not go on using, or all of them; 0.1 µs when it has none."""
    if not _thread_state.has_opened_connections:
        return
    try:
        _check_connections(close=close)
    except BaseException:  # noqa: BLE001 - a task that has ended has its outcome, whatever its connections do
        logger.exception("the database connections of a task could not be checked after it; they are closed")
        for connection in connections.all(initialized_only=True):
            _discard(connection)
        _thread_state.has_opened_connections = False


def _check_connections(*, close: bool) -> None:
    is_one_open = False
    # The same as Django's `reset_queries` and `close_old_connections`, which each look for the connections again.
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if not close:
            connection.close_if_unusable_or_obsolete()
        if connection.in_atomic_block:
            logger.warning("a task left a transaction of database %r open; it is rolled back", connection.alias)
        if close or connection.in_atomic_block:
            _discard(connection)
        else:
            is_one_open = is_one_open or connection.connection is not None
    _thread_state.has_opened_connections = is_one_open


RECHECK_SECONDS = 1.0
"""Seconds after a check in which the next task of a thread needs none: nothing has used the connections meanwhile. Connections
may become older than ``CONN_MAX_AGE`` by this time."""


class ConnectionChecks:
    """Checks the connections of a thread that runs tasks one after the other.

    Args:
        close: close all connections after each task.
    """

    def __init__(self, *, close: bool) -> None:
        self._close = close
        self._checked_at = -math.inf

    def check_before(self, now: float) -> None:
        """Check before a task that begins ``now`` (`time.monotonic`)."""
        if now - self._checked_at >= RECHECK_SECONDS:
            clean_up_connections(close=self._close)

    def check_after(self) -> None:
        """Check after a task."""
        clean_up_connections(close=self._close)
        self._checked_at = monotonic()

    def record_use(self) -> None:
        """Record that code of the project has run since the last check."""
        self._checked_at = -math.inf


def _discard(connection: Any) -> None:
    """Close the connection and forget the object, with all that a task has changed of both."""
    try:
        if connection.vendor == "postgresql" and connection.connection is not None and connection.pool:
            connection.connection.close()  # or the pool would keep it, with its session variables
        connection.close()
        if connection.vendor == "sqlite" and connection.connection is not None:
            connection.connection.close()  # Django never closes databases in memory
    except BaseException as error:  # noqa: BLE001 - the server may be gone; the task has its outcome all the same
        logger.warning("a connection to database %r could not be closed properly: %s", connection.alias, error)
    del connections[connection.alias]


T = TypeVar("T")


class CopyEndingExecutor(ThreadPoolExecutor):
    """Threads that call functions for coroutines. If a function has forked, the copy of this process ends when it returns."""

    def __init__(self, threads: int | None, name: str) -> None:
        super().__init__(threads, name)
        self._process = this_process.get()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(self._call, partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return function()
        finally:
            copies.end_if_copied(self._process)


class LoopExecutor(CopyEndingExecutor):
    """The threads in which an event loop calls functions: `asyncio.to_thread` and ``loop.run_in_executor(None, …)``.

    The coroutines of all slots share these threads. So each call without a context gets a new one, and after each
    call the database connections of the thread are checked, as after a task.

    Args:
        close_connections: close the database connections of the thread after each call.
    """

    def __init__(self, *, close_connections: bool) -> None:
        super().__init__(None, "fairque-to-thread")
        self._close_connections = close_connections

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return super()._call(partial(run_in_new_context, function))
        finally:
            clean_up_connections(close=self._close_connections)


class TaskContexts:
    """Makes the contexts of tasks that run one after the other."""

    def __init__(self) -> None:
        self._initial = Context()
        # Django keeps connections to caches in context variables. An empty context in which a cache is set has just these.
        scratch = Context()
        nothing: Any = None
        scratch.run(caches.__setitem__, "default", nothing)
        self._caches = tuple(scratch)

    def new(self) -> Context:
        return self._initial.copy()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body`` in a new context."""
        context = self.new()
        try:
            return context.run(body)
        finally:
            self.keep_caches(context)

    def keep_caches(self, context: Context) -> None:
        """Let the next contexts have the caches that were created in this one."""
        for variable in self._caches:
            value = context.get(variable)
            if value is not None and value is not self._initial.get(variable):
                self._initial.run(variable.set, value)


class CoroutineContexts(TaskContexts):
    """The same for coroutines. Their synchronous code (`sync_to_async`) runs in a thread that no other slot uses: they would
    share database connections otherwise, with open transactions and session variables.

    Args:
        close_connections: close the database connections of that thread after each task.
    """

    def __init__(self, *, close_connections: bool) -> None:
        super().__init__()
        self.are_connections_open = False
        """Whether the thread may have connections. Recorded for the event loop, which can't look into the other thread."""
        self._close_connections = close_connections
        self._executor = CopyEndingExecutor(1, "fairque-sync")  # starts its thread when there is something to run
        thread = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[thread] = self._executor
        self._initial.run(SyncToAsync.thread_sensitive_context.set, thread)
        self._initial.run(_coroutine_contexts.set, self)

    async def clean_up(self) -> None:
        """Run `clean_up_connections` in the thread that runs synchronous code of the coroutines."""
        self.keep_caches(copy_context())
        if self.are_connections_open:
            await sync_to_async(self._clean_up_thread)()

    def _clean_up_thread(self) -> None:
        clean_up_connections(close=self._close_connections)
        self.are_connections_open = _thread_state.has_opened_connections

    def end(self) -> None:
        """Close the connections and end the thread as soon as it is idle."""
        if self.are_connections_open:
            self._executor.submit(close_connections)
        self._executor.shutdown(wait=False)


_coroutine_contexts: ContextVar[CoroutineContexts | None] = ContextVar("fairque_contexts", default=None)
"""Set in the contexts of coroutines, which `sync_to_async` takes along to the thread."""


async def clean_up_coroutine() -> None:
    """Call this in a task's coroutine, before the task begins and after its end."""
    contexts = _coroutine_contexts.get()
    if contexts is not None:
        await contexts.clean_up()


def run_in_new_context(body: Callable[[], T]) -> T:
    """Call ``body`` in a new context for a task of this thread."""
    if _thread_state.contexts is None:
        _thread_state.contexts = TaskContexts()
    return _thread_state.contexts.run(body)
