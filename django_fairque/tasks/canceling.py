"""Canceling as everything does that knows Django: receivers of `task_canceled` are told what was canceled.

The engine's own `cancel` sends nothing. While nobody listens, this costs nothing beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import lifecycle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue

AT_ONCE = 10_000
"""Tasks of a user that are canceled before their receivers are told."""


def cancel(queue: FairQueue, task_id: str, reason: str = "") -> bool:
    """Cancel a task; False if it had ended before, `TaskNotFoundError` if it is not known."""
    is_canceled = queue.cancel(task_id, reason=reason)
    if is_canceled:
        lifecycle.canceled(queue, [task_id])
    return is_canceled


async def acancel(queue: AsyncFairQueue, task_id: str) -> bool:
    """As `cancel`."""
    is_canceled = await queue.cancel(task_id)
    if is_canceled:
        await lifecycle.acanceled(queue, [task_id])
    return is_canceled


def cancel_many(queue: FairQueue, task_ids: Sequence[str], reason: str) -> int:
    """Cancel those of these tasks that have not ended; returns how many."""
    return telling(queue, lambda note: queue.cancel_many(task_ids, reason=reason, note=note))


def cancel_run(queue: FairQueue, run_id: str) -> int:
    """Cancel what has not ended of a run; returns how many tasks."""
    return telling(queue, lambda note: queue.cancel_run(run_id, note=note))


async def acancel_run(queue: AsyncFairQueue, run_id: str) -> int:
    """As `cancel_run`."""
    return await _atelling(queue, lambda note: queue.cancel_run(run_id, note=note))


def purge_user(queue: FairQueue, user_id: str) -> int:
    """Cancel everything that a user has waiting; returns how many tasks."""
    user, total, done = queue.user(user_id), 0, AT_ONCE
    while done == AT_ONCE:
        done = telling(queue, lambda note: user.purge(AT_ONCE, note=note))
        total += done
    return total


def telling(queue: FairQueue, act: Callable[[Note], int]) -> int:
    """Do it, and tell of what it notes; also of what it had canceled before it raised."""
    if not lifecycle.hears_of_canceling():
        return act(None)
    ids: list[str] = []
    try:
        return act(ids.extend)
    finally:
        lifecycle.canceled(queue, ids)


async def _atelling(queue: AsyncFairQueue, act: Callable[[Note], Awaitable[int]]) -> int:
    if not lifecycle.hears_of_canceling():
        return await act(None)
    ids: list[str] = []
    try:
        return await act(ids.extend)
    finally:
        await lifecycle.acanceled(queue, ids)
