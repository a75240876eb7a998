"""The configuration and the queues, imported when the first task is sent: declaring tasks costs a web process little."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from django_fairque.conf import FairQueueConfig
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue

BRIEFLY = 0.25
"""Seconds for which a call is repeated if its tasks are safe whatever becomes of it, and somebody waits for its end."""
_brief: WeakKeyDictionary[FairQueue, FairQueue] = WeakKeyDictionary()


def get_config() -> FairQueueConfig:
    from django_fairque.conf import current

    return current.get_config()


def get_queue(name: str) -> FairQueue:
    from django_fairque.conf import queues

    return queues.get_queue(name)


def brief_queue(name: str) -> FairQueue:
    """As `get_queue`, for a call that is not worth waiting for while the server is away."""
    queue = get_queue(name)
    found = _brief.get(queue)
    if found is None:
        found = _brief[queue] = queue.repeating_for(min(BRIEFLY, queue.config.request_timeout))
    return found


async def aget_queue(name: str) -> AsyncFairQueue:
    from django_fairque.conf import queues

    return await queues.aget_queue(name)
