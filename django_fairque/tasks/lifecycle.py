"""The signals that are sent where tasks are enqueued and where they run. Free when nobody listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_fairque import signals
from django_fairque.engine.model.errors import FairQueueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.model.records import PushResult
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue

    from .run import Run

logger = logging.getLogger("django_fairque.tasks")

SLICE = 200
"""Canceled tasks that are read at once."""


def send_task_pushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """Tell of the tasks that were accepted (not of duplicates)."""
    if not signals.task_pushed.receivers:
        return
    for task, result in zip(tasks, results, strict=True):
        if result.accepted:
            _log_failures(signals.task_pushed.send_robust(sender=task.name, task=task, queue=queue))


async def asend_task_pushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """As `pushed`, from a coroutine: in the thread where synchronous code runs, once for all of the tasks."""
    if signals.task_pushed.receivers:
        await sync_to_async(send_task_pushed)(queue, tasks, results)


def send_task_started(run: Run) -> None:
    if signals.task_started.receivers:
        _log_failures(signals.task_started.send_robust(sender=run.lease.name, **_about(run)))


async def asend_task_started(run: Run) -> None:
    if signals.task_started.receivers:
        _log_failures(await signals.task_started.asend_robust(sender=run.lease.name, **_about(run)))


def hears_of_canceling() -> bool:
    """Whether anyone is to be told what was canceled."""
    return bool(signals.task_canceled.receivers)


def canceled(queue: FairQueue, task_ids: Sequence[str]) -> None:
    """A person, or code, has canceled these tasks, which had not ended."""
    for some in _slices(task_ids):
        try:
            tasks = queue.get_tasks(some)
        except FairQueueError as error:
            _not_told(queue.name, some, error)
            continue
        for task in tasks.values():
            _log_failures(signals.task_canceled.send_robust(**_of_canceled(queue.name, task)))


async def acanceled(queue: AsyncFairQueue, task_ids: Sequence[str]) -> None:
    """As `canceled`, from a coroutine: receivers that are none run where synchronous code does."""
    for some in _slices(task_ids):
        try:
            tasks = await queue.get_tasks(some)
        except FairQueueError as error:
            _not_told(queue.name, some, error)
            continue
        for task in tasks.values():
            _log_failures(await signals.task_canceled.asend_robust(**_of_canceled(queue.name, task)))


def _slices(task_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many as are held in memory at once; none if nobody listens."""
    for first in range(0, len(task_ids) if hears_of_canceling() else 0, SLICE):
        yield task_ids[first : first + SLICE]


def _of_canceled(queue: str, task: Task) -> dict[str, Any]:
    return {"sender": task.name, "task": task, "task_id": task.task_id, "queue": queue}


def _not_told(queue: str, task_ids: Sequence[str], error: FairQueueError) -> None:
    """They are canceled all the same, so nobody who asked for that is given the error."""
    logger.warning(
        "queue %s: receivers of task_canceled were not told of %d canceled tasks (%s, …), which could not be read: %s",
        *(queue, len(task_ids), task_ids[0], error),
    )


def _about(run: Run) -> dict[str, Any]:
    return {"task": run.lease.task, "queue": run.services.queue}


def _log_failures(answers: Sequence[tuple[Any, Any]]) -> None:
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)
