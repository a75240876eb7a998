"""Dead letters for the pages to show."""

from __future__ import annotations

from typing import Any

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue


def bury(queue: FairQueue, error: BaseException | str = "no such address", **options: Any) -> str:
    """The entry of a new dead letter; the options are those of `Task.create`."""
    chosen = {"user_id": "acme", "priority": 3, "payload": {"order": 7}, "name": "shop.send", **options}
    task = Task.create(**chosen)
    queue.push(task)
    (lease,) = queue.pop_batch(1, "w-1", [task.user_id])
    queue.fail(lease, error, retry=False)
    return f"{task.task_id}~1"
