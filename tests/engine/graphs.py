"""Helpers of tests of dependencies: tasks by name, states in a line, leases by name."""

from __future__ import annotations

from typing import Any

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

from .conftest import NOW, task


def node(name: str, *depends_on: str, user: str = "u", **options: Any) -> Task:
    return task(user, task_id=name, depends_on=depends_on, **options)


def states(queue: FairQueue, *names: str) -> str:
    """``"a:queued b:deferred"``."""
    return " ".join(f"{name}:{queue.get_task(name).state.value}" for name in names)


def take(queue: FairQueue, *names: str) -> list[Lease]:
    """Pop everything ready, which must be exactly these."""
    leases = queue.pop_batch(100, "w", lease=1e6, now=NOW)
    assert [lease.task_id for lease in leases] == list(names)
    return leases


def die(queue: FairQueue, lease: Lease) -> str:
    queue.fail(lease, "no", retry=False, now=NOW)
    return f"{lease.task_id}~1"
