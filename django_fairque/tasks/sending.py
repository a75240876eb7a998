"""Handing tasks to their queue: at once, or when the database transaction that is open here commits.

A transaction's tasks for one queue travel in one push: each hook waits for the tasks that follow it directly in
the same savepoint. Rolling back takes hook and tasks away together.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, transaction

from django_fairque.conf import aget_queue, get_config, get_queue

from .results import TaskResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.models import Task
    from django_fairque.engine.records import PushResult

    from .options import TaskOptions

logger = logging.getLogger("django_fairque.tasks")


class Waiting:
    """Tasks that wait for a commit; called by it."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.tasks: list[Task] = []
        self.results: list[TaskResult] = []

    def add(self, tasks: Sequence[Task]) -> list[TaskResult]:
        results = [TaskResult(task.task_id, self.queue, waiting=self) for task in tasks]
        self.tasks += tasks
        self.results += results
        return results

    def drop(self, result: TaskResult) -> bool:
        """Not to be sent after all; False if it was sent already."""
        if result not in self.results:
            return False
        index = self.results.index(result)
        del self.tasks[index], self.results[index]
        return True

    def __call__(self) -> None:
        tasks, results = self.tasks, self.results
        self.tasks, self.results = [], []
        try:
            pushed = get_queue(self.queue).push_batch(tasks)
        except Exception:
            ids = ", ".join(task.task_id for task in tasks[:10])
            logger.exception(
                "%d tasks for queue %s could not be sent after the commit: %s", len(tasks), self.queue, ids
            )
            raise
        for result, answer in zip(results, pushed, strict=True):
            result.sent_as(answer.task_id)


def send(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks, or leave them to the commit; a result for each."""
    waiting = _wait_for_commit(options, tasks)
    return waiting if waiting is not None else _results(options, get_queue(options.queue).push_batch(tasks))


async def asend(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """As `send`; a transaction is looked for in the thread in which synchronous code runs."""
    waiting = await sync_to_async(_wait_for_commit)(options, tasks)
    if waiting is not None:
        return waiting
    queue = await aget_queue(options.queue)
    return _results(options, await queue.push_batch(tasks))


def _results(options: TaskOptions, pushed: Sequence[PushResult]) -> list[TaskResult]:
    return [TaskResult(answer.task_id, options.queue) for answer in pushed]


def _wait_for_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    waits = get_config().enqueue_on_commit if options.on_commit is None else options.on_commit
    database = options.database or DEFAULT_DB_ALIAS
    connection = transaction.get_connection(database)
    if not waits or not connection.in_atomic_block:
        return None
    hook = _last_hook(connection, options.queue)
    if hook is None:
        hook = Waiting(options.queue)
        transaction.on_commit(hook, using=database)
    return hook.add(tasks)


def _last_hook(connection: Any, queue: str) -> Waiting | None:
    """The hook that was registered last, if more tasks may join it: same queue, same savepoints.

    ``run_on_commit`` and ``savepoint_ids`` are not Django's public interface: where they look otherwise, every call
    has a hook of its own.
    """
    hooks = getattr(connection, "run_on_commit", None)
    savepoints = getattr(connection, "savepoint_ids", None)
    if not isinstance(hooks, list) or not hooks or savepoints is None:
        return None
    last = hooks[-1]
    if isinstance(last, tuple) and len(last) >= 2 and isinstance(last[1], Waiting) and last[1].queue == queue:
        return last[1] if last[0] == set(savepoints) else None
    return None
