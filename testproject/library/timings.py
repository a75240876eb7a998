"""What the queue remembers of finished tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque import TaskState
from django_fairque.monitoring.first_come import ServedTask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from django_fairque import FairQueue, Task

PAGE = 1_000


def runs_of(queue: FairQueue, task_ids: Collection[str]) -> list[ServedTask]:
    """The runs of those tasks that are finished, of the library's own kinds."""
    wanted = frozenset(task_ids)
    return [run_of(task) for task in finished(queue) if task.task_id in wanted]


def finished(queue: FairQueue) -> Iterator[Task]:
    page = queue.tasks(TaskState.FINISHED, limit=PAGE)
    yield from page.items
    while page.cursor:
        page = queue.tasks(TaskState.FINISHED, limit=PAGE, cursor=page.cursor)
        yield from page.items


LANE_NAMES = {"urgent": "urgent mails", "bulk": "nightly job"}
"""One row for all tasks of these lanes, which are of many users."""


def run_of(task: Task) -> ServedTask:
    """From ready to begun as the task itself saw it: a worker may hold a task for a moment before it begins."""
    started = task.result["started"]
    arrived = task.created_at if task.ready_at is None else task.ready_at
    user = LANE_NAMES.get(task.lane, task.user_id)
    return ServedTask(user, arrived, started, started + task.result["took"])
