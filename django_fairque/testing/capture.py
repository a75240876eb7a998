"""`capture_tasks`: what is enqueued is kept instead of sent, can be asserted, and run here and now."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS

from django_fairque.conf.current import needing_no_server
from django_fairque.engine.model.records import TaskState
from django_fairque.tasks import registry, sending
from django_fairque.tasks.handles import outlets
from django_fairque.tasks.queues import get_config
from django_fairque.tasks.results import TaskResult

from .answering import AsyncCapturedQueue, CapturedQueue
from .captured import Captured, Store, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.options import TaskOptions
    from django_fairque.tasks.waiting import Waiting

MOST_RUN = 10_000
"""Tasks in one `Capture.run`: tasks that enqueue each other for ever end in an error."""


class Capture:
    """What was enqueued; list-like over the tasks that would be sent, in their order."""

    def __init__(self, *, runs_at_once: bool = False) -> None:
        around = innermost()
        self._store: Store = Store(None if around is None else around._store)  # noqa: SLF001 - of its own kind
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
        return self._store.kept()

    def of(self, task: Any) -> list[Captured]:
        """Those of one task, given itself or its name."""
        name = name_of(task)
        return [each for each in self if each.name == name]

    def clear(self) -> None:
        """Forget what was enqueued so far; the windows of `unique_for` end."""
        self._store.clear()

    def take(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
        """Take these in place of the queue (for `enqueue`)."""
        hook = None
        if not self._runs_at_once and sending.may_wait(options):
            hook = sending.hook_in(options.database or DEFAULT_DB_ALIAS)
        results = [TaskResult(self._keep(options, task, hook).id, options.queue) for task in tasks]
        if self._runs_at_once:
            self.run()
        return results

    def queue(self, name: str) -> Any:
        """What handles ask in place of the queue of this name."""
        return CapturedQueue(self._store, name)

    def aqueue(self, name: str) -> Any:
        """As `queue`, for coroutines."""
        return AsyncCapturedQueue(self.queue(name))

    def _keep(self, options: TaskOptions, task: Task, hook: Waiting | None) -> Captured:
        made = Captured(task, options.queue, hook)
        for known in self._store.alike(made.queue, task):
            if _is_the_same(known, task):
                if task.debounce is not None and _same_key(known.task, task):  # the last call counts
                    known.task = known.task.model_copy().carrying(task.payload_bytes)
                    known.args, known.kwargs = made.args, made.kwargs
                return known
        self._store.add(made)
        return made

    def run(self, *queues: str, raise_errors: bool = True) -> int:
        """Run what was captured (in these queues only, if any are named), and what that enqueues, here and now.

        A task runs when those that it depends on have, and a batch task is called with what a worker would give it at
        once. An error of a task is raised (``raise_errors=False`` keeps it in ``Captured.error``); nothing is tried
        again. Returns how many tasks ran.
        """
        from .running import run_captured

        for name in queues:
            get_config().queue_config(name)
        count = 0
        while ready := self._ready(queues):
            for batch in _batches(ready):
                together = [each for each in batch if _is_waiting(each)]  # not if one before it has run or canceled it
                count += len(together)
                if count > MOST_RUN:
                    raise RuntimeError(f"{MOST_RUN} tasks have run and there are more: do they enqueue each other?")
                if together:
                    run_captured(self, together, raise_errors=raise_errors)
        return count

    def _ready(self, queues: Sequence[str]) -> list[Captured]:
        found = self._store.states().items()
        ready = [each for each, state in found if state is TaskState.QUEUED and (not queues or each.queue in queues)]
        return [each for each in ready if _is_waiting(each)]

    def results_of(self, ids: Sequence[str]) -> dict[str, Any]:
        """What those of these that have finished returned; a copy, as each reader has of a queue's."""
        by_id = {each.id: each for each in self._store.tasks}
        return {
            task_id: deepcopy(by_id[task_id].result)
            for task_id in ids
            if task_id in by_id and by_id[task_id].state is TaskState.FINISHED
        }


def _is_the_same(known: Captured, task: Task) -> bool:
    """Whether a queue would take a call for what it knows already.

    The window of a `unique_for` never ends here: a test must not depend on how long it takes.
    """
    is_live = not known.state.is_ended
    same_work = _same_key(known.task, task)
    return (is_live and known.id == task.task_id) or (same_work and (is_live or task.unique_for is not None))


def _same_key(known: Task, task: Task) -> bool:
    return bool(task.unique_key) and (known.unique_key, known.user_id) == (task.unique_key, task.user_id)


def _is_waiting(captured: Captured) -> bool:
    return captured.state is TaskState.QUEUED and captured.is_kept


def _batches(ready: Sequence[Captured]) -> list[list[Captured]]:
    """What one call runs: tasks of one batch task up to its size, where the first of them stands; others by themselves."""
    batches: list[list[Captured]] = []
    newest: dict[tuple[str, str], list[Captured]] = {}
    for each in ready:
        definition, key = registry.find(each.name), (each.queue, each.name)
        size = (definition.options.batch if definition else None) or 1
        if key not in newest or len(newest[key]) == size:
            newest[key] = []
            batches.append(newest[key])
        newest[key].append(each)
    return batches


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
    outlets.append(capture)
    try:
        with needing_no_server():
            yield capture
    finally:
        outlets.remove(capture)


def innermost() -> Capture | None:
    """The innermost capture that is open."""
    return next((outlet for outlet in reversed(outlets) if isinstance(outlet, Capture)), None)


def active() -> Capture:
    """As `innermost`, and an error where none is."""
    capture = innermost()
    if capture is None:
        raise AssertionError(
            "no tasks are captured here: use capture_tasks(), eager(), FairqueTestMixin or the fixture `fairque`"
        )
    return capture
