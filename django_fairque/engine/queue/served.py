"""Queues that no worker serves while workers serve others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


def find_unserved(queues: Iterable[FairQueue]) -> list[str]:
    """Return the names of the queues without a live worker. If no queue has a live worker, return no names, because
    workers are stopped.
    """
    served = {queue.name: bool(queue.workers()) for queue in queues}
    return [name for name, has_worker in served.items() if not has_worker] if any(served.values()) else []


def describe_unserved(name: str) -> str:
    return f"no worker serves queue {name!r}, which the settings declare; start one with manage.py fairque_worker --queue {name}"
