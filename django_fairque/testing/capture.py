"""`capture_tasks`: what is enqueued is kept instead of sent, can be asserted, and run here and now."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS

from django_fairque.conf.current import needing_no_server
from django_fairque.engine import payload as json_payload
from django_fairque.engine.records import TaskState
from django_fairque.tasks import sending
from django_fairque.tasks.results import TaskResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.models import Task
    from django_fairque.engine.priority import Priority
    from django_fairque.tasks.options import TaskOptions
    from django_fairque.tasks.waiting import Waiting

MOST_RUN = 10_000
"""Tasks in one `Capture.run`: tasks that enqueue each other for ever end in an error."""


@dataclass(eq=False)
class Captured:
    """One enqueued call. ``args`` and ``kwargs`` are as a worker would get them: JSON, so tuples are lists."""

    task: Task
    queue: str
    hook: Waiting | None = None
    state: TaskState = TaskState.QUEUED
    result: Any = None
    error: BaseException | None = None
    progress: tuple[float, float, str] | None = None
    args: list[Any] = field(init=False)
    kwargs: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        payload = json_payload.loads(self.task.payload_bytes)
        self.args, self.kwargs = payload["args"], payload["kwargs"]

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"<{self.name}({', '.join(given)}) for {self.user_id!r}, {self.priority.name}, queue {self.queue}>"

    @property
    def id(self) -> str:
        return self.task.task_id

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def user_id(self) -> str:
        return self.task.user_id

    @property
    def priority(self) -> Priority:
        return self.task.priority

    @property
    def is_kept(self) -> bool:
        """Whether it would be sent: neither canceled nor rolled back."""
        return self.state is not TaskState.CANCELED and (self.hook is None or self.hook.is_alive)


class CapturedResult(TaskResult):
    """The handle of a captured task: asks the capture instead of a queue."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.id, captured.queue)
        self._captured = captured

    def refresh(self) -> TaskResult:
        captured = self._captured
        self._task = captured.task.model_copy(update={"state": captured.state, "result": captured.result})
        return self

    async def arefresh(self) -> TaskResult:
        return self.refresh()

    def cancel(self) -> bool:
        ended = self._captured.state.is_ended
        if not ended:
            self._captured.state = TaskState.CANCELED
        return not ended

    async def acancel(self) -> bool:
        return self.cancel()

    @property
    def errors(self) -> list[Any]:
        return []

    async def aerrors(self) -> list[Any]:
        return []

    @property
    def position(self) -> int | None:
        return None


class Capture:
    """What was enqueued; list-like over the tasks that would be sent, in their order."""

    def __init__(self, *, runs_at_once: bool = False) -> None:
        self._all: list[Captured] = []
        self._runs_at_once = runs_at_once
        self.xcom: dict[str, dict[str, Any]] = {}
        """Values that tasks have passed on, by namespace (a run's id)."""

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Captured]:
        return iter(self.tasks)

    def __getitem__(self, index: int) -> Captured:
        return self.tasks[index]

    def __repr__(self) -> str:
        return f"<Capture of {len(self)} tasks>"

    @property
    def tasks(self) -> list[Captured]:
        """What was enqueued, in its order, without what was canceled or rolled back."""
        return [each for each in self._all if each.is_kept]

    def of(self, task: Any) -> list[Captured]:
        """Those of one task, given itself or its name."""
        name = task if isinstance(task, str) else task.name
        return [each for each in self if each.name == name]

    def clear(self) -> None:
        """Forget what was enqueued so far."""
        self._all.clear()

    def take(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
        """Take these in place of the queue (for `enqueue`)."""
        hook = None
        if not self._runs_at_once and sending.may_wait(options):
            hook = sending.hook_in(options.database or DEFAULT_DB_ALIAS)
        results: list[TaskResult] = [CapturedResult(self._keep(options, task, hook)) for task in tasks]
        if self._runs_at_once:
            self.run()
        return results

    def _keep(self, options: TaskOptions, task: Task, hook: Waiting | None) -> Captured:
        made = Captured(task, options.queue, hook)
        for known in self.tasks:
            same_id = known.id == made.id
            same_work = bool(task.unique_key) and known.task.unique_key == task.unique_key
            if known.queue == made.queue and not known.state.is_ended and (same_id or same_work):
                if same_work and task.debounce is not None:  # the last call counts
                    known.task = known.task.model_copy().carrying(task.payload_bytes)
                    known.args, known.kwargs = made.args, made.kwargs
                return known
        self._all.append(made)
        return made

    def run(self, *, raise_errors: bool = True) -> int:
        """Run what was captured, and what that enqueues, here and now; returns how many tasks ran.

        A task runs when those that it depends on have. An error of a task is raised (``raise_errors=False`` keeps it
        in ``Captured.error``); nothing is tried again.
        """
        from .running import run_captured

        count = 0
        while ready := [each for each in self if each.state is TaskState.QUEUED and self._is_ready(each)]:
            for each in ready:
                count += 1
                if count > MOST_RUN:
                    raise RuntimeError(f"{MOST_RUN} tasks have run and there are more: do they enqueue each other?")
                run_captured(self, each, raise_errors=raise_errors)
        return count

    def _is_ready(self, captured: Captured) -> bool:
        by_id = {each.id: each for each in self._all}
        parents = [by_id[parent] for parent in captured.task.depends_on if parent in by_id]
        runs_anyhow = captured.task.on_dependency_failure == "run"
        return all(each.state is TaskState.FINISHED or (runs_anyhow and each.state.is_ended) for each in parents)

    def results_of(self, ids: Sequence[str]) -> dict[str, Any]:
        """What those of these that have finished returned."""
        by_id = {each.id: each for each in self._all}
        return {
            task_id: by_id[task_id].result
            for task_id in ids
            if task_id in by_id and by_id[task_id].state is TaskState.FINISHED
        }


@contextmanager
def capture_tasks() -> Iterator[Capture]:
    """Keep what is enqueued in the block instead of sending it.

    What is enqueued inside a transaction counts as sent at once (a test's transaction never commits) unless its
    savepoint is rolled back.
    """
    with _outlet(Capture()) as capture:
        yield capture


@contextmanager
def eager() -> Iterator[Capture]:
    """Run each task where it is enqueued, before `enqueue` returns; its errors are raised there."""
    with _outlet(Capture(runs_at_once=True)) as capture:
        yield capture


@contextmanager
def _outlet(capture: Capture) -> Iterator[Capture]:
    sending.outlets.append(capture)
    try:
        with needing_no_server():
            yield capture
    finally:
        sending.outlets.remove(capture)


def active() -> Capture:
    """The innermost capture that is open."""
    for outlet in reversed(sending.outlets):
        if isinstance(outlet, Capture):
            return outlet
    raise AssertionError(
        "no tasks are captured here: use capture_tasks(), eager(), FairqueTestMixin or the fixture `fairque`"
    )
