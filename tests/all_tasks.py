"""Every task that a queue knows, in whatever state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.records import TaskState

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue


def all_tasks(queue: FairQueue) -> dict[str, Task]:
    """By id, read a thousand at a time."""
    found: dict[str, Task] = {}
    for state in TaskState:
        cursor: Any = None
        while True:
            page = queue.tasks(state, limit=1000, cursor=cursor)
            found.update((task.task_id, task) for task in page.items)
            cursor = page.cursor
            if cursor is None:
                break
    return found
