"""Leases of tasks that a test has pushed."""

from __future__ import annotations

from typing import Any

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.queue.queue import FairQueue


def pop(queue: FairQueue, worker: str = "w", *args: Any, **options: Any) -> Lease:
    """Pop a task that must be there. The arguments are those of `FairQueue.pop`."""
    lease = queue.pop(worker, *args, **options)
    assert lease is not None
    return lease
