"""Leases of tasks that a test has pushed."""

from __future__ import annotations

from typing import Any
from zlib import crc32

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue


def pop(queue: FairQueue, worker: str = "w", *args: Any, **options: Any) -> Lease:
    """Pop a task that must be there. The arguments are those of `FairQueue.pop`."""
    lease = queue.pop(worker, *args, **options)
    assert lease is not None
    return lease


def run_attempts(
    queue: FairQueue, name: str, attempts: int, failed: int = 0, took: float = 1.0, now: float | None = None
) -> None:
    """Let attempts of tasks of this name end, ``failed`` of them with an error, after which their tasks are dead letters."""
    user = f"u{crc32(name.encode())}"
    queue.push_batch([Task.create(user, 3, None, name=name) for _ in range(attempts)], now=now)
    leases = queue.pop_batch(attempts, "w", [user], now=now)
    assert {lease.name for lease in leases} == {name}
    outcomes = [Outcome.fail(lease, "no", delay=None, took=took) for lease in leases[:failed]]
    queue.settle([*outcomes, *(Outcome.finish(lease, took=took) for lease in leases[failed:])], now=now)
