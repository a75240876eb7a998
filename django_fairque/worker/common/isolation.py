"""Isolates each task from the next: each task gets a new context (`contextvars.Context`) and checked database
connections.

A new context is empty instead of a copy of the worker's context, because some libraries change objects in context
variables in place (for example `decimal` and sentry-sdk), and all copies would share these objects. Only Django's
caches are kept from one task to the next, because a cache has connections.

Database connections are checked before and after each task, as Django checks them for each request. If a task begins
within a second of the last check in its thread, the check before the task is left out, unless code of the project has
run since (`ConnectionChecks`). Looking for connections costs more than a small task, so Django's `connection_created`
signal sets a flag in each thread that opens a connection.
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
    """Close the database connections of this thread. Call this when the thread ends."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.connection is not None:  # Django never closes a SQLite database in memory, which tests use
            connection.connection.close()


def clean_up_connections(*, close: bool = False) -> None:
    """Close the database connections of this thread that are unusable, too old or left in a transaction; with
    ``close``, all of them. Takes 0.1 µs if the thread has no connections.
    """
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
    # Does the work of Django's `reset_queries` and `close_old_connections`, but looks for the connections only once.
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
"""Seconds after a check of a thread's connections in which the thread's next task needs no check, because nothing has
used the connections since. Connections may exceed ``CONN_MAX_AGE`` by this time."""


class ConnectionChecks:
    """Checks the database connections of a thread that runs tasks one after the other.

    Args:
        close: close all connections after each task.
    """

    def __init__(self, *, close: bool) -> None:
        self._close = close
        self._checked_at = -math.inf

    def check_before(self, now: float) -> None:
        """Check the connections before a task that begins at ``now`` (`time.monotonic`), unless they were checked a
        moment ago.
        """
        if now - self._checked_at >= RECHECK_SECONDS:
            clean_up_connections(close=self._close)

    def check_after(self) -> None:
        """Check the connections after a task."""
        clean_up_connections(close=self._close)
        self._checked_at = monotonic()

    def record_use(self) -> None:
        """Record that code of the project has run since the last check, so that the next task needs a check."""
        self._checked_at = -math.inf


def _discard(connection: Any) -> None:
    """Close the connection and remove Django's object for it, because a task may have changed the state of either."""
    try:
        if connection.vendor == "postgresql" and connection.connection is not None and connection.pool:
            connection.connection.close()  # the pool would keep the connection with its session variables
        connection.close()
        if connection.vendor == "sqlite" and connection.connection is not None:
            connection.connection.close()  # Django never closes SQLite databases in memory
    except BaseException as error:  # noqa: BLE001 - the server may be gone; the task has its outcome all the same
        logger.warning("a connection to database %r could not be closed properly: %s", connection.alias, error)
    del connections[connection.alias]


T = TypeVar("T")


class CopyEndingExecutor(ThreadPoolExecutor):
    """Threads that call synchronous functions for coroutines. If a function has forked, the copy of this process ends
    when the function returns.
    """

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

    The coroutines of all slots share these threads. So a call that brings no context gets a new context, and the
    database connections of the thread are checked after each call, in the same way as after a task.

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
    """Makes a new context for each of the tasks that one thread runs one after the other."""

    def __init__(self) -> None:
        self._initial = Context()
        # Django keeps caches in context variables. Setting a cache in an empty context finds these variables: they are
        # the only ones in it.
        scratch = Context()
        nothing: Any = None
        scratch.run(caches.__setitem__, "default", nothing)
        self._caches = tuple(scratch)

    def new(self) -> Context:
        return self._initial.copy()

    def run(self, body: Callable[[], T]) -> T:
        """Call ``body`` in a new context and return its result."""
        context = self.new()
        try:
            return context.run(body)
        finally:
            self.keep_caches(context)

    def keep_caches(self, context: Context) -> None:
        """Copy the caches that were created in this context to the contexts of later tasks."""
        for variable in self._caches:
            value = context.get(variable)
            if value is not None and value is not self._initial.get(variable):
                self._initial.run(variable.set, value)


class CoroutineContexts(TaskContexts):
    """Makes contexts for the coroutines of one slot. Their synchronous code (`sync_to_async`) runs in a thread that no
    other slot uses. Otherwise the tasks of different slots would share database connections, with open transactions and
    session variables.

    Args:
        close_connections: close the database connections of that thread after each task.
    """

    def __init__(self, *, close_connections: bool) -> None:
        super().__init__()
        self.are_connections_open = False
        """Whether the thread for synchronous code may have open database connections. The event loop reads this
        attribute because it can't inspect the connections of another thread."""
        self._close_connections = close_connections
        self._executor = CopyEndingExecutor(1, "fairque-sync")  # starts its thread when there is a function to run
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
"""The `CoroutineContexts` of the running coroutine. `sync_to_async` copies this variable to its thread."""


async def clean_up_coroutine() -> None:
    """Check the database connections that synchronous code of a task's coroutine uses. Called in the coroutine, before
    the task begins and after it ends.
    """
    contexts = _coroutine_contexts.get()
    if contexts is not None:
        await contexts.clean_up()


def run_in_new_context(body: Callable[[], T]) -> T:
    """Call ``body`` in a new context of this thread, and return its result."""
    if _thread_state.contexts is None:
        _thread_state.contexts = TaskContexts()
    return _thread_state.contexts.run(body)
