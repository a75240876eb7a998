"""Sends tasks to their queue: at once, or when the open database transaction commits."""

from __future__ import annotations

import os
import sys
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, transaction

from django_fairque import conf, hooks, signals
from django_fairque.engine.model.errors import PushRefusedError
from django_fairque.engine.model.records import EventCount, PushResult
from django_fairque.outbox import has_outbox
from django_fairque.safely import get_logger
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.middleware import AsyncSending, Sending, TaskSend
from django_fairque.tasks.results import TaskResult
from django_fairque.tasks.tracing import NO_SPAN, current_trace, set_traces
from django_fairque.tasks.transactions import open_transactions
from django_fairque.tasks.transactions.after_commit import PendingBatch, send_batch
from django_fairque.tasks.transactions.commit_buffer import (
    find_commit_hook,
    find_event_hook,
    get_commit_buffer,
    get_connection,
)

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from django_fairque.conf.models import FairQueueConfig
    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.options import TaskOptions


logger = get_logger("django_fairque.tasks")

_warned: set[str] = set()
"""Databases for which a warning was logged because their commits are not reported to hooks."""


def _span_around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> tuple[AbstractContextManager[object], dict[str, str]]:
    """Attach the current trace to the tasks. Return the span to open around sending, and the headers of the span's
    trace.
    """
    if config.tracing and hooks.tracing is not None:
        return hooks.tracing.send_span(options.queue, tasks), hooks.tracing.baggage_header()
    set_traces(tasks, current_trace())
    return NO_SPAN, {}


def around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractContextManager[object]:
    """Return the context manager around sending. On entering, the current trace is attached to the tasks, a span is
    opened if tracing is on, and middleware runs.
    """
    span, headers = _span_around_sending(config, options, tasks)
    if headers or config.middleware or options.middleware:
        return Sending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))
    return span


def around_sending_async(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractAsyncContextManager[object]:
    """Return the context manager around sending for coroutines."""
    span, headers = _span_around_sending(config, options, tasks)
    return AsyncSending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))


_SENDING_PACKAGES = ("django_fairque.", "django.tasks.", "django_tasks.")


def _warn_of_blocked_loop(tasks: Sequence[Task]) -> None:
    """Warn that ``enqueue()`` blocks the event loop, with the line of the call. By default Python prints a warning once
    for each line.
    """
    # notebooks run in an event loop, and Django accepts this variable for them
    if os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        return
    level, frame = 1, sys._getframe()  # noqa: SLF001 - as `warnings` does; only Python 3.12 can skip packages by path
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_SENDING_PACKAGES):
        level, frame = level + 1, frame.f_back
    name = tasks[0].name if tasks else "a task"
    warnings.warn(
        f"enqueue() of {name} was called in a coroutine and blocks its event loop until the server has answered: use "
        "`await task.aenqueue(…)`, or aenqueue_many() for several",
        RuntimeWarning,
        stacklevel=level,
    )


def send(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks, or let the commit push them. Return a result for each task."""
    if _get_running_loop() is not None:
        _warn_of_blocked_loop(tasks)
    config = conf.get_config()
    if config.tracing or config.middleware or options.middleware:
        with around_sending(config, options, tasks):
            return _send(config, options, tasks)
    set_traces(tasks, current_trace())
    return _send(config, options, tasks)


SHELL_MODULES = ("__main__", "__console__", "builtins", "None")
"""Module names of functions that are defined in a script, a shell or a notebook."""
unimportable: set[str] = set()
"""The names of this process's tasks that no worker can import, because their functions are defined in one of
`SHELL_MODULES`."""


def refuse_unimportable(tasks: Iterable[Task]) -> None:
    """Raise `TaskUsageError` if a worker can't import one of the tasks."""
    for task in tasks:
        if task.name in unimportable:
            raise TaskUsageError(
                f"task {task.name!r} is declared in a script or a shell, and no worker can import it, so nothing was sent: move "
                "it into a module that workers import, such as tasks.py of an app; or give it the name of a worker's task"
            )


def _send(config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    if (interceptor := conf.current_interceptor()) is not None:
        return interceptor.intercept(options, tasks)
    if unimportable:
        refuse_unimportable(tasks)
    if may_wait(config, options) and (left := _leave_to_commit(options, tasks)) is not None:
        return left
    queue = conf.get_queue(options.queue)
    try:
        if config.tracing:
            with hooks.around_push(options.queue, tasks):
                pushed = queue.push_batch(tasks)
        else:
            pushed = queue.push_batch(tasks)
    except PushRefusedError as error:
        signals.send_task_pushed(options.queue, tasks, _answers(error))
        raise
    signals.send_task_pushed(options.queue, tasks, pushed)
    return [
        TaskResult(answer.task_id, options.queue, name=task.name) for task, answer in zip(tasks, pushed, strict=True)
    ]


async def asend(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks from a coroutine, or let the commit push them. The open transaction is looked up in the thread
    that runs synchronous code, because Django opens transactions there.
    """
    config = conf.get_config()
    if config.tracing or config.middleware or options.middleware:
        async with around_sending_async(config, options, tasks):
            return await _asend(config, options, tasks)
    set_traces(tasks, current_trace())
    return await _asend(config, options, tasks)


async def _asend(config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    if (interceptor := conf.current_interceptor()) is not None:
        return await sync_to_async(interceptor.intercept)(options, tasks)
    if unimportable:
        refuse_unimportable(tasks)
    if may_wait(config, options) and (left := await sync_to_async(_leave_to_commit)(options, tasks)) is not None:
        return left
    queue = await conf.aget_queue(options.queue)
    try:
        if config.tracing:
            with hooks.around_push(options.queue, tasks):
                pushed = await queue.push_batch(tasks)
        else:
            pushed = await queue.push_batch(tasks)
    except PushRefusedError as error:
        await signals.asend_task_pushed(options.queue, tasks, _answers(error))
        raise
    await signals.asend_task_pushed(options.queue, tasks, pushed)
    return [
        TaskResult(answer.task_id, options.queue, name=task.name) for task, answer in zip(tasks, pushed, strict=True)
    ]


def _answers(error: PushRefusedError) -> list[PushResult]:
    """Return the queue's result for each task of a refused call."""
    return [answer for answer in error.results if isinstance(answer, PushResult)]


def may_wait(config: FairQueueConfig, options: TaskOptions) -> bool:
    """Return whether the tasks would wait for a commit if a transaction is open. Return False if certainly no
    transaction is open.
    """
    waits = config.enqueue_on_commit if options.on_commit is None else options.on_commit
    return waits and (options.database is not None or open_transactions.may_be_open())


def _leave_to_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    """Add the tasks to the commit hook of the open transaction. Return None if no transaction is open."""
    hook = find_commit_hook(options.database)
    if hook is None:
        return None
    # Errors that are found without the server are raised here, in the code that enqueues, and not later at the commit.
    from django_fairque.engine.pushing.batching import check_acyclic

    check_acyclic({task.task_id: task.depends_on for task in tasks if task.depends_on})
    return hook.add(options.queue, tasks)


def send_for_event(event: str, key: str, options: TaskOptions, make: Callable[[], Task]) -> None:
    """Send the task of a model event after the commit. In one transaction, events with the same ``key`` send only one
    task.

    Tasks that the server refuses are logged and counted. No error is raised here, because code that saves a model does
    not expect one.

    Args:
        event: the name of the event, for the counts.
        key: identifies the task; equal keys mean the same task.
        options: the task's options, with the ``database`` in which the event happened.
        make: function that builds the task; not called if the event was recorded before. Errors of this function are
            raised.
    """
    database = options.database or DEFAULT_DB_ALIAS
    hook = find_event_hook(database)

    def take() -> Task | None:
        task = make()
        with around_sending(conf.get_config(), options, [task]):
            if (interceptor := conf.current_interceptor()) is None:
                refuse_unimportable([task])
                return task
            interceptor.intercept(replace(options, on_commit=hook is not None), [task])
            return None

    if hook is not None:
        hook.add_event(event, key, options.queue, take)
    elif (task := take()) is None:
        return
    elif conf.get_config().outbox and has_outbox(database):
        with transaction.atomic(using=database):
            get_commit_buffer(get_connection(database)).add_event(event, key, options.queue, lambda: task)
    else:
        _warn_without_autocommit(database)
        batch = PendingBatch({TaskResult(task.task_id, options.queue): task}, {task.task_id: event})
        batch.counts[event] = EventCount(fired=1)
        send_batch(options.queue, batch)


def _warn_without_autocommit(database: str) -> None:
    """Log a warning that the commits of a database are not reported, once for each database and not at every save."""
    connection = get_connection(database)
    if database not in _warned and connection.connection is not None and not connection.autocommit:
        _warned.add(database)
        logger.warning(
            "autocommit of database %r is off: what model events ask for is sent at once, maybe before the commit",
            database,
        )
