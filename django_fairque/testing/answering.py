"""What handles ask while tasks are captured: a queue's methods, answered from what was captured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.runs import RunView
from django_fairque.engine.inspection.task_lookup import Progress
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.records import Attempt, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.model.task import Task

    from .captured import Captured, Store


class CapturedQueue:
    """Those methods of `FairQueue` that handles call."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name

    def get_task(self, task_id: str) -> Task:
        return _record(*self._find(task_id))

    def history(self, task_id: str) -> list[Attempt]:
        found = self._store.find(self.name, task_id)
        return [] if found is None else list(found[1].attempts)

    def get_progress(self, task_id: str) -> Progress | None:
        found = self._store.find(self.name, task_id)
        return None if found is None or found[1].progress is None else Progress(*found[1].progress)

    def position(self, task_id: str) -> int | None:
        store, captured = self._find(task_id)
        return store.position_of(captured)

    def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        found = {task_id: self._store.find(self.name, task_id) for task_id in task_ids}
        return {task_id: _record(*each) for task_id, each in found.items() if each is not None}

    def cancel(self, task_id: str, *, reason: str = "") -> bool:
        return _cancel(*self._find(task_id), reason=reason)

    def run(self, run_id: str) -> RunView:
        return RunView(run_id, tuple(_record(*each) for each in self._members(run_id)))

    def cancel_run(self, run_id: str, *, note: Note = None) -> int:
        members = reversed(self._members(run_id))  # as a queue does: nothing of it becomes ready meanwhile
        done = [each[1].task.task_id for each in members if _cancel(*each, reason=f"run {run_id} was canceled")]
        if note is not None:
            note(done)
        return len(done)

    def _find(self, task_id: str) -> tuple[Store, Captured]:
        found = self._store.find(self.name, task_id)
        if found is None:
            raise TaskNotFoundError(f"no task {task_id!r} of queue {self.name!r} was captured")
        return found

    def _members(self, run_id: str) -> list[tuple[Store, Captured]]:
        members = [each for each in self._store.known(self.name) if each[1].task.run_id == run_id]
        if not members:
            raise TaskNotFoundError(f"no task of run {run_id!r} in queue {self.name!r} was captured")
        return members


class AsyncCapturedQueue:
    """The same methods, awaitable."""

    def __init__(self, queue: CapturedQueue) -> None:
        self._queue, self.name = queue, queue.name

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        ask = getattr(self._queue, name)

        async def answer(*args: Any, **kwargs: Any) -> Any:
            return ask(*args, **kwargs)

        return answer


def _record(store: Store, captured: Captured) -> Task:
    found = {name: getattr(captured, name) for name in ("result", "started_at", "ended_at", "worker")}
    return captured.task.model_copy(update={"state": store.state_of(captured), **found})


def _cancel(store: Store, captured: Captured, *, reason: str) -> bool:
    if store.state_of(captured).is_ended:
        return False
    captured.become(TaskState.CANCELED)
    captured.attempts.append(Attempt(time.time(), "canceled", "", reason))
    return True
