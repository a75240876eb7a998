"""Handing tasks to their queue: at once, or when the database transaction that is open here commits.

The tasks of a transaction travel together, one push for each queue: a hook of the commit takes in the tasks that
follow it directly in the same savepoint, so rolling that back takes hook and tasks away. A hook of somebody else in
between begins a new one, so that what was to happen before a task is sent still does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist

from django_fairque.engine.errors import BacklogFullError
from django_fairque.engine.records import PushResult

from . import lifecycle
from .errors import TaskUsageError
from .queues import aget_queue, get_config, get_queue
from .results import TaskResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_fairque.engine.models import Task

    from .options import TaskOptions

MOST_IDS = 100
"""Ids named in a log line."""

logger = logging.getLogger("django_fairque.tasks")


class Outlet(Protocol):
    """Where tasks go instead of to their queue: tests put one here (`django_fairque.testing`)."""

    def take(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]: ...


outlets: list[Outlet] = []
"""The last one counts."""


class Waiting:
    """Tasks that wait for a commit, which calls it."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.is_over = False
        """The commit came (or a test ran its hooks): nothing may be added any more, it would stay here."""
        self._tasks: dict[str, dict[TaskResult, Task]] = {}

    def add(self, queue: str, tasks: Sequence[Task]) -> list[TaskResult]:
        results = [TaskResult(task.task_id, queue, waiting=self) for task in tasks]
        self._tasks.setdefault(queue, {}).update(zip(results, tasks, strict=True))
        return results

    def drop(self, result: TaskResult) -> bool:
        """Not to be sent after all; False if it was sent already."""
        return self._tasks.get(result.queue, {}).pop(result, None) is not None

    def __call__(self) -> None:
        """Send everything that can be sent; the first error goes to the one who commits."""
        self.is_over = True
        waiting, self._tasks = self._tasks, {}
        errors = [error for queue, tasks in waiting.items() if (error := _push(queue, tasks)) is not None]
        if errors:
            raise errors[0]


def _push(queue: str, tasks: Mapping[TaskResult, Task]) -> Exception | None:
    """Push after a commit. What was refused is logged: its ids are known to callers, and it is nowhere else now."""
    try:
        pushed: Sequence[object] = get_queue(queue).push_batch(tasks.values())
        failure = None
    except BacklogFullError as error:
        pushed, failure = error.results, error
        _log_lost(queue, error.refused, error)
    except Exception as error:  # noqa: BLE001 - logged here, raised after the other queues' tasks were sent
        _log_lost(queue, [task.task_id for task in tasks.values()], error)
        return error
    answers = [answer for answer in pushed if isinstance(answer, PushResult)]
    for result, answer in zip(tasks, answers, strict=True):
        if answer.accepted or answer.duplicate:
            result.sent_as(answer.task_id)
    lifecycle.pushed(queue, list(tasks.values()), answers)
    return failure


def _log_lost(queue: str, ids: Sequence[str], error: Exception) -> None:
    named = ", ".join(ids[:MOST_IDS]) + (" …" if len(ids) > MOST_IDS else "")
    logger.error(
        "%d tasks for queue %s could not be sent after the commit (%s): %s",
        len(ids),
        queue,
        error,
        named,
        exc_info=error,
    )


def send(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks, or leave them to the commit; a result for each."""
    if outlets:
        return outlets[-1].take(options, tasks)
    if may_wait(options) and (waiting := _leave_to_commit(options, tasks)) is not None:
        return waiting
    return _results(options, tasks, get_queue(options.queue).push_batch(tasks))


async def asend(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """As `send`; a transaction is looked for in the thread in which synchronous code runs, where Django's are."""
    if outlets:
        return await sync_to_async(outlets[-1].take)(options, tasks)
    if may_wait(options) and (waiting := await sync_to_async(_leave_to_commit)(options, tasks)) is not None:
        return waiting
    queue = await aget_queue(options.queue)
    return _results(options, tasks, await queue.push_batch(tasks))


def _results(options: TaskOptions, tasks: Sequence[Task], pushed: Sequence[PushResult]) -> list[TaskResult]:
    lifecycle.pushed(options.queue, tasks, pushed)
    return [TaskResult(answer.task_id, options.queue) for answer in pushed]


def may_wait(options: TaskOptions) -> bool:
    return get_config().enqueue_on_commit if options.on_commit is None else options.on_commit


def _leave_to_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    """Results of tasks that are sent when the transaction commits; None when there is no transaction."""
    connection = connection_of(options.database or DEFAULT_DB_ALIAS)
    if not connection.in_atomic_block:
        if connection.connection is not None and not connection.autocommit:
            raise TaskUsageError(
                f"autocommit of database {connection.alias!r} is off and no atomic() is open, so nobody can tell when it "
                "commits: use atomic(), or enqueue after the commit with using(on_commit=False)"
            )
        return None
    hook = _last_hook(connection)
    if hook is None:
        hook = Waiting(connection.alias)
        connection.on_commit(hook)
    return hook.add(options.queue, tasks)


def connection_of(alias: str) -> BaseDatabaseWrapper:
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise TaskUsageError(f"using(database=…): expected one of {known}, got {alias!r}") from None


def _last_hook(connection: Any) -> Waiting | None:
    """The hook that was registered last, if more tasks may join it: ours, not over, registered in these savepoints.

    Its parts are not Django's public interface: where they look otherwise, every call has a hook of its own. So it
    has in the block that a `TestCase` opens, where tests tell the hooks of one moment from those of another.
    """
    try:
        savepoints, hook = connection.run_on_commit[-1][:2]
        here, block = set(connection.savepoint_ids), connection.atomic_blocks[-1]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    if not isinstance(hook, Waiting) or hook.is_over or savepoints != here or getattr(block, "_from_testcase", False):
        return None
    return hook
