"""What is not to be sent after all, before the commit: a task, and with it what depends on it, as when it is canceled later."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django_fairque.engine.model.task import Task

    from .waiting import Parcel


def drop_with_dependents(task_id: str, parcels: Sequence[Parcel]) -> Iterator[tuple[Parcel, dict[str, Task | None]]]:
    """Take the task away, and those that depend on it or on such a one; those that are to run anyhow only depend on fewer.

    Args:
        parcels: what waits for the task's queue in the transaction.

    Yields:
        Each parcel that was changed, and by id what is to be sent now instead, None for nothing.
    """
    gone = _all_gone(task_id, [task for parcel in parcels for task in parcel.tasks.values()])
    for parcel in parcels:
        changes: dict[str, Task | None] = {}
        for result, task in list(parcel.tasks.items()):
            if task.task_id in gone:
                changes[task.task_id] = None
                parcel.dropped.add(result)
                del parcel.tasks[result]
            elif not gone.isdisjoint(task.depends_on):
                changes[task.task_id] = parcel.tasks[result] = _without(task, gone)
        if changes:
            yield parcel, changes


def _all_gone(task_id: str, tasks: Iterable[Task]) -> set[str]:
    dependents = [task for task in tasks if task.depends_on and task.on_dependency_failure != "run"]
    gone, size = {task_id}, 0
    while len(gone) > size:
        size = len(gone)
        gone |= {task.task_id for task in dependents if not gone.isdisjoint(task.depends_on)}
    return gone


def _without(task: Task, gone: Iterable[str]) -> Task:
    left = tuple(each for each in task.depends_on if each not in gone)
    changed = task.model_copy(update={"depends_on": left})
    return changed.carrying(task.payload_bytes, task.task_id if task.has_chosen_id else None)
