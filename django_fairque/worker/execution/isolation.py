"""Keeps the state of one task from the next: each task runs in a new context (`contextvars.Context`).

A new context is empty. It is not a copy of a context from the start of the worker, because some libraries keep objects in
context variables and change them in place (`decimal` its context, sentry-sdk its scopes), and all copies would share those.
Only Django's caches pass from one task to the next, because a cache has connections.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.cache import caches

from django_fairque.worker.execution import db_connections as database
from django_fairque.worker.execution import process_copies as copies

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class CopyEndingExecutor(ThreadPoolExecutor):
    """Threads that call functions for coroutines. If a function has forked, the copy of this process ends when it returns."""

    def __init__(self, threads: int | None, name: str) -> None:
        super().__init__(threads, name)
        self._generation = copies.generation()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(self._call, partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return function()
        finally:
            copies.end_if_copied(self._generation)


class LoopExecutor(CopyEndingExecutor):
    """The threads in which an event loop calls functions: `asyncio.to_thread` and ``loop.run_in_executor(None, …)``.

    The coroutines of all slots share these threads. So each call that has no context of its own gets a new one, and after each
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
            database.clean_up_connections(close=self._close_connections)


class TaskContexts:
    """Makes the contexts of tasks that run one after the other."""

    def __init__(self) -> None:
        self._initial = Context()
        self._caches = _cache_variables()

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
        self._connections = database.ThreadConnections(close=close_connections)
        self._executor = CopyEndingExecutor(1, "fairque-sync")  # starts its thread when there is something to run
        thread = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[thread] = self._executor
        self._initial.run(SyncToAsync.thread_sensitive_context.set, thread)
        self._initial.run(database.thread_connections.set, self._connections)
        self._initial.run(_coroutine_contexts.set, self)

    async def clean_up(self) -> None:
        """As `database.clean_up_connections`, in that thread."""
        self.keep_caches(copy_context())
        if self._connections.are_open:
            await sync_to_async(self._connections.clean_up)()

    def end(self) -> None:
        """Close the connections and end the thread as soon as it is idle."""
        if self._connections.are_open:
            self._executor.submit(database.close_connections)
        self._executor.shutdown(wait=False)


_coroutine_contexts: ContextVar[CoroutineContexts | None] = ContextVar("fairque_contexts", default=None)


async def clean_up_coroutine() -> None:
    """Call this in a task's coroutine, before the task begins and after its end."""
    contexts = _coroutine_contexts.get()
    if contexts is not None:
        await contexts.clean_up()


class _ThreadContexts(threading.local):
    contexts: TaskContexts | None = None


_thread_contexts = _ThreadContexts()


def run_in_new_context(body: Callable[[], T]) -> T:
    """Call ``body`` in a new context for a task of this thread."""
    if _thread_contexts.contexts is None:
        _thread_contexts.contexts = TaskContexts()
    return _thread_contexts.contexts.run(body)


def _cache_variables() -> tuple[ContextVar[Any], ...]:
    """The context variables in which Django keeps the caches of a thread. Setting one shows which they are."""
    scratch = Context()
    nothing: Any = None
    scratch.run(caches.__setitem__, "default", nothing)
    return tuple(scratch)
