"""Runs: the tasks of one graph that were pushed together under one run id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.task_lookup import cancel_noting, get_tasks
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.scripting.operations import Operation, Read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands

RUN_TASKS_PER_CALL = 200


@dataclass(frozen=True)
class RunView:
    """A run at one moment. ``tasks`` are those not forgotten, in the order of their push.

    ``state``: "running" while anything can go on by itself; "failed" when only a dead letter's requeueing could;
    else "finished" when all tasks did, "canceled" when some were canceled.
    """

    run_id: str
    tasks: tuple[Task, ...]

    @property
    def states(self) -> Mapping[TaskState, int]:
        return Counter(task.state for task in self.tasks)

    @property
    def state(self) -> str:
        states = self.states
        if any(states.get(state) for state in (TaskState.SCHEDULED, TaskState.QUEUED, TaskState.STARTED)):
            return "running"
        if states.get(TaskState.FAILED):
            return "failed"
        if states.get(TaskState.DEFERRED):
            return "running"  # on tasks outside the run
        return "canceled" if states.get(TaskState.CANCELED) else "finished"


def view(commands: Commands, run_id: str) -> Operation[RunView]:
    tasks = yield from _tasks(commands, run_id)
    return RunView(run_id, tuple(tasks))


def cancel(commands: Commands, run_id: str, reason: str, note: Note, now: float | None) -> Operation[int]:
    """The last of the graph first, so that nothing of it is released meanwhile; returns how many were canceled."""
    tasks = yield from _tasks(commands, run_id)
    ids = [task.task_id for task in reversed(tasks) if not task.state.is_ended]
    done: set[str] = set()
    for first in range(0, len(ids), MAX_CALL_ITEMS):
        some, why = ids[first : first + MAX_CALL_ITEMS], reason or f"run {run_id} was canceled"
        done.update((yield from cancel_noting(commands, some, why, note, now)))
    after = zip(ids, (yield from get_tasks(commands, ids)), strict=True)
    # What depends on those of the slice before went with them.
    more = [each for each, task in after if each not in done and (task is None or task.state is TaskState.CANCELED)]
    if note is not None and more:
        note(more)
    return len(done) + len(more)


def members(commands: Commands, run_id: str) -> Operation[list[str]]:
    """The ids of a run's tasks, sorted; `TaskNotFoundError` when there are none (any more)."""
    check_id(run_id, "run_id")
    found = yield Read([("SMEMBERS", keys.run(run_id)) for keys in commands.keys.everywhere()])
    ids = sorted(member.decode() for some in found for member in some)
    if not ids:
        raise TaskNotFoundError(f"queue {commands.name!r} knows no run {run_id!r}; one is forgotten with its last task")
    return ids


def _tasks(commands: Commands, run_id: str) -> Operation[list[Task]]:
    ids = yield from members(commands, run_id)
    tasks: list[Task] = []
    for first in range(0, len(ids), RUN_TASKS_PER_CALL):
        found = yield from get_tasks(commands, ids[first : first + RUN_TASKS_PER_CALL])
        tasks += [task for task in found if task is not None]
    return sorted(tasks, key=lambda task: (task.created_at, task.task_id))
