"""What was captured, and where each of it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_lookup import Note, Progress, RunView
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.tasks import on_commit

if TYPE_CHECKING:
    from django_fairque.engine.model.priority import Priority
    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.on_commit import CommitBuffer


@dataclass(eq=False)
class Captured:
    """One enqueued call. ``args`` and ``kwargs`` are as a worker would get them: JSON, so tuples are lists.

    ``task`` is the engine's task, ``queue`` the name of its queue, ``hook`` the transaction that it waits for.
    ``state`` is its state; ``started_at`` and ``ended_at`` are Unix times, ``worker`` is the worker's id, ``result``
    is what it returned, ``progress`` is its last report, ``attempts`` is its history (as `TaskResult.errors`), and
    ``error`` is the last exception that it raised.
    """

    task: Task
    queue: str
    hook: CommitBuffer | None = None
    state: TaskState = TaskState.QUEUED
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""
    result: Any = None
    error: BaseException | None = None
    progress: tuple[float, float, str] | None = None
    attempts: list[Attempt] = field(default_factory=list)
    args: list[Any] = field(init=False)
    kwargs: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        payload = json_payload.loads(self.task.payload_bytes)
        self.args, self.kwargs = payload["args"], payload["kwargs"]

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"<{self.name}({', '.join(given)}) for {self.user_id!r}, {self.priority.name}, queue {self.queue}>"

    def become(self, state: TaskState) -> None:
        """Change to this ``state``, now."""
        self.state = state
        if state is TaskState.STARTED:
            self.started_at = time.time()
        elif state.is_ended:
            self.ended_at = time.time()

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.task_id

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def user_id(self) -> str:
        """The user that the task is for."""
        return self.task.user_id

    @property
    def priority(self) -> Priority:
        """The task's priority."""
        return self.task.priority

    @property
    def is_rolled_back(self) -> bool:
        """Whether the transaction that it was enqueued in was rolled back."""
        return self.hook is not None and not self.hook.is_alive

    @property
    def is_kept(self) -> bool:
        """Whether it would be sent: neither canceled nor rolled back."""
        return self.state is not TaskState.CANCELED and not self.is_rolled_back


def _likeness(queue: str, task: Task) -> list[tuple[str, str, str]]:
    """Where to look for what a queue may take for this task."""
    by_id = (queue, "id", task.task_id)
    return [by_id, (queue, "key", f"{task.user_id}:{task.unique_key}")] if task.unique_key else [by_id]


def name_of(task: Any) -> str:
    """The name by which the queue knows a task, which may be given as its name; `name` of Django's is its function's."""
    return task if isinstance(task, str) else getattr(task, "module_path", None) or task.name


class Store:
    """What one capture has taken in. ``tasks`` are those not cleared since, in their order; handles know all of them."""

    def __init__(self, around: Store | None = None) -> None:
        self.tasks: list[Captured] = []
        self._around = around
        self._known: dict[tuple[str, str], Captured] = {}
        self._alike: dict[tuple[str, str, str], list[tuple[int, Captured]]] = {}
        """Of ``tasks``, those of one id and those of one unique key, with their place."""

    def add(self, captured: Captured) -> None:
        for key in _likeness(captured.queue, captured.task):
            self._alike.setdefault(key, []).append((len(self.tasks), captured))
        self.tasks.append(captured)
        self._known[captured.queue, captured.id] = captured

    def clear(self) -> None:
        """Forget ``tasks``."""
        self.tasks.clear()
        self._alike.clear()

    def kept(self) -> list[Captured]:
        """Those of ``tasks`` that would be sent."""
        hooks = on_commit.alive_buffers(each.hook for each in self.tasks if each.hook is not None)
        return [
            each
            for each in self.tasks
            if each.state is not TaskState.CANCELED and (each.hook is None or each.hook in hooks)
        ]

    def alike(self, queue: str, task: Task) -> list[Captured]:
        """Those of ``tasks`` that would be sent and have the id or the unique key of this one, in their order."""
        found = {each for key in _likeness(queue, task) for each in self._alike.get(key, ())}
        return [captured for _, captured in sorted(found, key=itemgetter(0)) if captured.is_kept]

    def known(self, queue: str) -> Iterator[tuple[Store, Captured]]:
        """What was captured of a queue, here and in the captures around this one, with where that was."""
        for (name, _), captured in self._known.items():
            if name == queue and not captured.is_rolled_back:
                yield self, captured
        if self._around is not None:
            yield from self._around.known(queue)

    def find(self, queue: str, task_id: str) -> tuple[Store, Captured] | None:
        captured = self._known.get((queue, task_id))
        if captured is not None and not captured.is_rolled_back:
            return self, captured
        return None if self._around is None else self._around.find(queue, task_id)

    def states(self) -> dict[Captured, TaskState]:
        """The state that a queue would tell of each: that of a task which waits depends on what it waits for."""
        newest = {(each.queue, each.id): each for each in self.tasks}
        graph = {key: [(each.queue, parent) for parent in each.task.depends_on] for key, each in newest.items()}
        found = {each: each.state for each in self.tasks}
        for key in TopologicalSorter(graph).static_order():
            if key in newest:
                parents = [found[newest[parent]] for parent in graph[key] if parent in newest]
                found[newest[key]] = _state_after(newest[key], parents)
        return found

    def state_of(self, captured: Captured) -> TaskState:
        if captured.state is not TaskState.QUEUED or not captured.task.depends_on:
            return captured.state
        return self.states().get(captured, captured.state)


def _state_after(captured: Captured, parents: Sequence[TaskState]) -> TaskState:
    """Of a task, given the states of those that it depends on (not of what was enqueued before the capture)."""
    policy = captured.task.on_dependency_failure
    if captured.state is not TaskState.QUEUED:
        return captured.state
    if policy != "run" and (TaskState.CANCELED in parents or (policy == "cancel" and TaskState.FAILED in parents)):
        return TaskState.CANCELED
    is_free = all(parent.is_ended if policy == "run" else parent is TaskState.FINISHED for parent in parents)
    return TaskState.QUEUED if is_free else TaskState.DEFERRED


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
        states = store.states()
        if states.get(captured) is not TaskState.QUEUED:
            return None
        mine = (captured.queue, captured.user_id)
        queued = [each for each, state in states.items() if state is TaskState.QUEUED and not each.is_rolled_back]
        queued = [each for each in queued if (each.queue, each.user_id) == mine]
        return sorted(queued, key=lambda each: -each.priority).index(captured)

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
