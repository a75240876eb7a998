"""The configuration and the queues, imported when the first task is sent: declaring tasks costs a web process little."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.conf import FairQueueConfig
    from django_fairque.engine.aio import AsyncFairQueue
    from django_fairque.engine.queue import FairQueue


def get_config() -> FairQueueConfig:
    from django_fairque.conf import current

    return current.get_config()


def get_queue(name: str) -> FairQueue:
    from django_fairque.conf import queues

    return queues.get_queue(name)


async def aget_queue(name: str) -> AsyncFairQueue:
    from django_fairque.conf import queues

    return await queues.aget_queue(name)
