"""Canceling as everything does that knows Django: `task_canceled` is sent for each canceled task.

The engine's own `cancel` sends nothing. While nobody listens, this costs nothing beyond it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django_fairque import signals
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.signals import log_receiver_errors

if TYPE_CHECKING:
    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue

CANCELED_TASKS_PER_READ = 200
"""Canceled tasks that are read at once."""

MAX_TASKS_PER_CANCEL = 10_000
"""Tasks of a user that are canceled before the signals for them are sent."""

logger = logging.getLogger("django_fairque.tasks")


def cancel(queue: FairQueue, task_id: str, reason: str = "") -> bool:
    """Cancel a task; False if it had ended before, `TaskNotFoundError` if it is not known."""
    is_canceled = queue.cancel(task_id, reason=reason)
    if is_canceled:
        send_task_canceled(queue, [task_id])
    return is_canceled


async def acancel(queue: AsyncFairQueue, task_id: str) -> bool:
    """As `cancel`."""
    is_canceled = await queue.cancel(task_id)
    if is_canceled:
        await asend_task_canceled(queue, [task_id])
    return is_canceled


def cancel_many(queue: FairQueue, task_ids: Sequence[str], reason: str) -> int:
    """Cancel those of these tasks that have not ended; returns how many."""
    return cancel_and_send_signals(queue, lambda note: queue.cancel_many(task_ids, reason=reason, note=note))


def cancel_run(queue: FairQueue, run_id: str) -> int:
    """Cancel what has not ended of a run; returns how many tasks."""
    return cancel_and_send_signals(queue, lambda note: queue.cancel_run(run_id, note=note))


async def acancel_run(queue: AsyncFairQueue, run_id: str) -> int:
    """As `cancel_run`."""
    if not has_canceled_receivers():
        return await queue.cancel_run(run_id)
    ids: list[str] = []
    try:
        return await queue.cancel_run(run_id, note=ids.extend)
    finally:
        await asend_task_canceled(queue, ids)


def purge_user(queue: FairQueue, user_id: str) -> int:
    """Cancel everything that a user has waiting; returns how many tasks."""
    user, total, done = queue.user(user_id), 0, MAX_TASKS_PER_CANCEL
    while done == MAX_TASKS_PER_CANCEL:
        done = cancel_and_send_signals(queue, lambda note: user.purge(MAX_TASKS_PER_CANCEL, note=note))
        total += done
    return total


def cancel_and_send_signals(queue: FairQueue, act: Callable[[Note], int]) -> int:
    """Cancel, and send signals for what was canceled; also for what was canceled before an error."""
    if not has_canceled_receivers():
        return act(None)
    ids: list[str] = []
    try:
        return act(ids.extend)
    finally:
        send_task_canceled(queue, ids)


def has_canceled_receivers() -> bool:
    """Whether `task_canceled` has receivers."""
    return bool(signals.task_canceled.receivers)


def send_task_canceled(queue: FairQueue, task_ids: Sequence[str]) -> None:
    """A person, or code, has canceled these tasks, which had not ended."""
    for some in _slices(task_ids):
        try:
            tasks = queue.get_tasks(some)
        except FairQueueError as error:
            _log_unsent_signals(queue.name, some, error)
            continue
        for task in tasks.values():
            log_receiver_errors(signals.task_canceled.send_robust(**_of_canceled(queue.name, task)))


async def asend_task_canceled(queue: AsyncFairQueue, task_ids: Sequence[str]) -> None:
    """As `canceled`, from a coroutine: receivers that are none run where synchronous code does."""
    for some in _slices(task_ids):
        try:
            tasks = await queue.get_tasks(some)
        except FairQueueError as error:
            _log_unsent_signals(queue.name, some, error)
            continue
        for task in tasks.values():
            log_receiver_errors(await signals.task_canceled.asend_robust(**_of_canceled(queue.name, task)))


def _slices(task_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many as are held in memory at once; none if nobody listens."""
    for first in range(0, len(task_ids) if has_canceled_receivers() else 0, CANCELED_TASKS_PER_READ):
        yield task_ids[first : first + CANCELED_TASKS_PER_READ]


def _of_canceled(queue: str, task: Task) -> dict[str, Any]:
    return {"sender": task.name, "task": task, "task_id": task.task_id, "queue": queue}


def _log_unsent_signals(queue: str, task_ids: Sequence[str], error: FairQueueError) -> None:
    """They are canceled all the same, so the caller does not get the error."""
    logger.warning(
        "queue %s: task_canceled was not sent for %d canceled tasks (%s, …), which could not be read: %s",
        *(queue, len(task_ids), task_ids[0], error),
    )
