"""Handing tasks to their queue: at once, or when the database transaction that is open here commits (`waiting`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, transaction

from django_fairque import conf, signals
from django_fairque.engine.model.errors import PushRefusedError
from django_fairque.engine.model.records import EventCount, PushResult
from django_fairque.outbox import has_outbox
from django_fairque.tasks import on_commit

from .errors import TaskUsageError
from .results import TaskResult, interceptors
from .tracing import around_sending

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task

    from .on_commit import CommitBuffer
    from .options import TaskOptions

logger = logging.getLogger("django_fairque.tasks")

_warned: set[str] = set()
"""Databases for which it was logged that their commits can't be noticed."""


def send(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks, or leave them to the commit; a result for each."""
    with around_sending(options.queue, tasks):
        if interceptors:
            return interceptors[-1].intercept(options, tasks)
        if may_wait(options) and (left := _leave_to_commit(options, tasks)) is not None:
            return left
        try:
            pushed = conf.get_queue(options.queue).push_batch(tasks)
        except PushRefusedError as error:
            signals.send_task_pushed(options.queue, tasks, _answers(error))
            raise
        signals.send_task_pushed(options.queue, tasks, pushed)
        return _results(options, pushed)


async def asend(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """As `send`; a transaction is looked for in the thread in which synchronous code runs, where Django's are."""
    with around_sending(options.queue, tasks):
        if interceptors:
            return await sync_to_async(interceptors[-1].intercept)(options, tasks)
        if may_wait(options) and (left := await sync_to_async(_leave_to_commit)(options, tasks)) is not None:
            return left
        queue = await conf.aget_queue(options.queue)
        try:
            pushed = await queue.push_batch(tasks)
        except PushRefusedError as error:
            await signals.asend_task_pushed(options.queue, tasks, _answers(error))
            raise
        await signals.asend_task_pushed(options.queue, tasks, pushed)
        return _results(options, pushed)


def _answers(error: PushRefusedError) -> list[PushResult]:
    """The queue's result for each task of a call that it refused in part, or as a whole."""
    return [answer for answer in error.results if isinstance(answer, PushResult)]


def _results(options: TaskOptions, pushed: Sequence[PushResult]) -> list[TaskResult]:
    return [TaskResult(answer.task_id, options.queue) for answer in pushed]


def may_wait(options: TaskOptions) -> bool:
    return conf.get_config().enqueue_on_commit if options.on_commit is None else options.on_commit


def _leave_to_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    """Results of tasks that are sent when the transaction commits; None when there is no transaction."""
    hook = hook_in(options.database or DEFAULT_DB_ALIAS)
    if hook is None:
        return None
    # What needs no server to be found wrong is raised now, where it is enqueued, and not at the commit.
    from django_fairque.engine.pushing.batching import check_acyclic
    from django_fairque.engine.pushing.push import check_limits

    check_limits(conf.get_config().queue_config(options.queue), tasks)
    check_acyclic({task.task_id: task.depends_on for task in tasks if task.depends_on})
    return hook.add(options.queue, tasks)


def hook_in(database: str) -> CommitBuffer | None:
    """What calls at the commit of the transaction that is open on a database; None when none is."""
    connection = on_commit.connection_of(database)
    if connection.in_atomic_block:
        hook = on_commit.commit_buffer_of(connection)
        if _is_on_commit_supported(connection) or hook.has_outbox:
            return hook
        raise TaskUsageError(
            f"AUTOCOMMIT of database {connection.alias!r} is False, so Django does not report when it commits: use the outbox, "
            "or enqueue after the commit with using(on_commit=False)"
        )
    if connection.connection is not None and not connection.autocommit:
        raise TaskUsageError(
            f"autocommit of database {connection.alias!r} is off and no atomic() is open, so it is unknown when it "
            "commits: use atomic(), or enqueue after the commit with using(on_commit=False)"
        )
    return None


def _is_on_commit_supported(connection: Any) -> bool:
    """Whether hooks are run at a commit: where autocommit is off by the settings no end of a block is one."""
    return getattr(connection, "commit_on_exit", True) or connection.settings_dict.get("AUTOCOMMIT", True)


def event_hook_in(database: str) -> CommitBuffer | None:
    """As `hook_in` for a model event, which is no reason to refuse a save: None also where commits are not reported."""
    connection = on_commit.connection_of(database)
    is_reported = connection.in_atomic_block and _is_on_commit_supported(connection)
    return on_commit.commit_buffer_of(connection) if is_reported else None


def send_for_event(event: str, key: str, options: TaskOptions, make: Callable[[], Task]) -> None:
    """Send what a model event asks for, after the commit, once for each ``key`` of a transaction.

    What the server refuses is logged and counted, and raises no error here: code that saves a model need not handle it.

    Args:
        event: its name, for the counts.
        key: what it asks for: the same key is the same task.
        options: with the ``database`` that the event is about.
        make: builds the task; not called for an event that was recorded before. Its errors are raised.
    """
    database = options.database or DEFAULT_DB_ALIAS
    hook = event_hook_in(database)

    def take() -> Task | None:
        task = make()
        with around_sending(options.queue, [task]):
            if not interceptors:
                return task
            interceptors[-1].intercept(
                replace(options, on_commit=hook is not None), [task]
            )  # an event always waits for it
            return None

    if hook is not None:
        hook.add_event(event, key, options.queue, take)
    elif (task := take()) is None:
        return
    elif conf.get_config().outbox and has_outbox(database):
        with transaction.atomic(using=database):
            on_commit.commit_buffer_of(on_commit.connection_of(database)).add_event(
                event, key, options.queue, lambda: task
            )
    else:
        _warn_without_autocommit(database)
        batch = on_commit.PendingBatch({TaskResult(task.task_id, options.queue): task}, {task.task_id: event})
        batch.counts[event] = EventCount(fired=1)
        on_commit.send_batch(options.queue, batch)


def _warn_without_autocommit(database: str) -> None:
    """Once for each database, not at every save."""
    connection = on_commit.connection_of(database)
    if database not in _warned and connection.connection is not None and not connection.autocommit:
        _warned.add(database)
        logger.warning(
            "autocommit of database %r is off: what model events ask for is sent at once, maybe before the commit",
            database,
        )
