"""The signals that are sent where tasks are enqueued and where they run. Free when nobody listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_fairque import signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.models import Task
    from django_fairque.engine.records import PushResult

    from .run import Run

logger = logging.getLogger("django_fairque.tasks")


def pushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """Tell of the tasks that were accepted (not of duplicates)."""
    if not signals.task_pushed.receivers:
        return
    for task, result in zip(tasks, results, strict=True):
        if result.accepted:
            _log_failures(signals.task_pushed.send_robust(sender=task.name, task=task, queue=queue))


async def apushed(queue: str, tasks: Sequence[Task], results: Sequence[PushResult]) -> None:
    """As `pushed`, from a coroutine: in the thread where synchronous code runs, once for all of the tasks."""
    if signals.task_pushed.receivers:
        await sync_to_async(pushed)(queue, tasks, results)


def started(run: Run) -> None:
    if signals.task_started.receivers:
        _log_failures(signals.task_started.send_robust(sender=run.lease.name, **_about(run)))


async def astarted(run: Run) -> None:
    if signals.task_started.receivers:
        _log_failures(await signals.task_started.asend_robust(sender=run.lease.name, **_about(run)))


def canceled(queue: str, task_id: str) -> None:
    """A person, or code, has canceled a task that had not ended."""
    if signals.task_canceled.receivers:
        _log_failures(signals.task_canceled.send_robust(sender=None, task_id=task_id, queue=queue))


async def acanceled(queue: str, task_id: str) -> None:
    """As `canceled`, from a coroutine: receivers that are none run where synchronous code does."""
    if signals.task_canceled.receivers:
        _log_failures(await signals.task_canceled.asend_robust(sender=None, task_id=task_id, queue=queue))


def _about(run: Run) -> dict[str, Any]:
    return {"task": run.lease.task, "queue": run.services.queue}


def _log_failures(answers: Sequence[tuple[Any, Any]]) -> None:
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)
