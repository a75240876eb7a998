"""`enqueued` contains the tasks that a test enqueues. Tasks are captured instead of sent, and tests can check and run
the captured tasks.

`capture_tasks` and `eager` capture the tasks of a ``with`` block. These tasks are also part of `enqueued`.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from django_fairque import conf
from django_fairque.conf.current import current_interceptor, intercept_tasks
from django_fairque.engine.dependencies.dependencies import XCOM_VALUE_MISSING
from django_fairque.engine.inspection.task_lookup import Note, Progress, RunView
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import ConfigurationError, TaskNotFoundError, TaskSerializationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.lanes import class_of
from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.engine.model.limits import encode_end
from django_fairque.engine.model.outcome import describe
from django_fairque.engine.model.records import Attempt, PushResult, TaskState
from django_fairque.tasks import registry, sending
from django_fairque.tasks.errors import Discard, Retry
from django_fairque.tasks.execution import (
    Call,
    Run,
    Services,
    failed_outcome,
    find_limit,
    get_time_limit,
    load_arguments,
)
from django_fairque.tasks.middleware import load_all
from django_fairque.tasks.results import TaskResult
from django_fairque.tasks.retries import NextStep, decide_next_step
from django_fairque.tasks.signing import KeyWatch
from django_fairque.tasks.transactions import commit_buffer
from django_fairque.tasks.value_types import load_result

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.priority import Priority
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.users.start_estimates import StartEstimate
    from django_fairque.tasks.definition import AnyDefinition
    from django_fairque.tasks.options import TaskOptions
    from django_fairque.tasks.transactions.commit_buffer import CommitBuffer


@dataclass(eq=False)
class Captured:
    """One captured call. ``args`` and ``kwargs`` have the JSON form that a worker would get, so tuples are lists.

    ``task`` is the engine's task, ``queue`` the name of its queue, and ``hook`` the commit hook for which the task
    waits. ``state`` is the task's state; ``started_at`` and ``ended_at`` are Unix times, ``worker`` is the worker's id,
    ``result`` is the returned value, ``progress`` is the last progress report, ``attempts`` is the history (like
    `TaskResult.errors`), and ``error`` is the last exception that the task raised. With ``retries``, ``waited`` is the
    number of seconds for which a worker would have delayed the retries, and ``snoozes`` is the number of times that the
    task raised `Retry` with ``max``. ``closed_limits`` contains the limits by key that the task has closed, each with
    its ``until``.
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
    closed_limits: dict[str, float | timedelta | datetime] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    waited: float = 0.0
    snoozes: int = 0
    args: list[Any] = field(init=False)
    kwargs: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        payload = json_payload.loads(self.task.payload_bytes)
        # A payload of another form is passed to the worker's handler.
        is_call = isinstance(payload, dict) and {"args", "kwargs"} <= payload.keys()
        self.args, self.kwargs = (payload["args"], payload["kwargs"]) if is_call else ([payload], {})

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        order = self.priority.name if self.lane == "normal" else self.lane
        return f"<{self.name}({', '.join(given)}) for {self.user_id!r}, {order}, queue {self.queue}>"

    def is_to_run_again(self, run: Run, error: BaseException) -> bool:
        """Count an attempt that ended with ``error``. Return whether a worker would run the task again. ``run`` is the
        attempt.
        """
        outcome = failed_outcome(run, error)
        left = run.lease.max_retries - self.task.retry_count
        if outcome.delay is None or decide_next_step(error, run.definition, left) is NextStep.FAIL:
            return False
        most, last = (outcome.limits or "::").split(":")[1:]
        self.waited += outcome.delay
        moment = (self.started_at or 0.0) + self.waited
        if (most and self.snoozes >= int(most)) or (last and moment > int(last) / 1_000_000):
            return False
        expiry = self.task.expires_at
        if self.task.expires is not None:
            expiry = self.task.created_at + self.task.expires
        if expiry is not None and moment >= expiry:
            return False
        self.snoozes += 1 if most else 0
        if outcome.kind == "fail":
            self.task = self.task.model_copy(update={"retry_count": self.task.retry_count + 1})
        return True

    def become(self, state: TaskState) -> None:
        """Change the state of the task to ``state``, with the current time."""
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
    def lane(self) -> Lane:
        """The task's lane."""
        return self.task.lane

    @property
    def is_rolled_back(self) -> bool:
        """Whether the transaction in which the task was enqueued was rolled back."""
        return self.hook is not None and not self.hook.is_alive

    @property
    def is_kept(self) -> bool:
        """Whether the task would be sent, because it was neither canceled nor rolled back."""
        return self.state is not TaskState.CANCELED and not self.is_rolled_back


def _likeness(queue: str, task: Task) -> list[tuple[str, str, str]]:
    """Return the keys in `Store._alike` that this task shares with tasks that a queue may treat as its duplicates."""
    by_id = (queue, "id", task.task_id)
    return [by_id, (queue, "key", f"{task.user_id}:{task.unique_key}")] if task.unique_key else [by_id]


def get_task_name(task: Any) -> str:
    """Return the task's name in the queue. ``task`` may already be the name. For a Django task the module path is used,
    because its ``name`` is only the name of the function.
    """
    return task if isinstance(task, str) else getattr(task, "module_path", None) or task.name


class Store:
    """The tasks of one capture. ``tasks`` contains the tasks in the order of their calls. `clear` empties this list,
    but handles still find their tasks.
    """

    def __init__(self, around: Store | None = None) -> None:
        self.tasks: list[Captured] = []
        self._around = around
        self._known: dict[tuple[str, str], Captured] = {}
        self._alike: dict[tuple[str, str, str], list[tuple[int, Captured]]] = {}
        """The tasks with an id or a unique key, by id and by unique key. Each task is stored with its index in
        ``tasks``."""

    def add(self, captured: Captured) -> None:
        for key in _likeness(captured.queue, captured.task):
            self._alike.setdefault(key, []).append((len(self.tasks), captured))
        self.tasks.append(captured)
        self._known[captured.queue, captured.id] = captured
        if self._around is not None:
            self._around.add(captured)

    def clear(self) -> None:
        self.tasks.clear()
        self._alike.clear()

    def list_kept_tasks(self) -> list[Captured]:
        """Return the tasks that would be sent, because they were neither canceled nor rolled back."""
        hooks = commit_buffer.alive_buffers(captured.hook for captured in self.tasks if captured.hook is not None)
        return [
            captured
            for captured in self.tasks
            if captured.state is not TaskState.CANCELED and (captured.hook is None or captured.hook in hooks)
        ]

    def alike(self, queue: str, task: Task) -> list[Captured]:
        """Return the tasks with the same id or the same unique key as ``captured`` that would be sent, in the order of
        their calls.
        """
        found = {candidate for key in _likeness(queue, task) for candidate in self._alike.get(key, ())}
        return [captured for _, captured in sorted(found, key=itemgetter(0)) if captured.is_kept]

    def iterate_known_tasks(self, queue: str) -> Iterator[tuple[Store, Captured]]:
        """Yield the captured tasks of a queue, each with its store: this store, or the store of a capture around this
        one.
        """
        for (name, _), captured in [*self._known.items()]:
            if name == queue and not captured.is_rolled_back:
                yield self, captured
        if self._around is not None:
            yield from self._around.iterate_known_tasks(queue)

    def find(self, queue: str, task_id: str) -> tuple[Store, Captured] | None:
        captured = self._known.get((queue, task_id))
        if captured is not None and not captured.is_rolled_back:
            return self, captured
        return None if self._around is None else self._around.find(queue, task_id)

    def states(self) -> dict[Captured, TaskState]:
        """Return the state that a queue would report for each task. The state of a waiting task depends on the states
        of its dependencies.
        """
        newest = {(captured.queue, captured.id): captured for captured in self.tasks}
        graph = {
            key: [(captured.queue, parent) for parent in captured.task.depends_on] for key, captured in newest.items()
        }
        found = {captured: captured.state for captured in self.tasks}
        for key in TopologicalSorter(graph).static_order():
            if key in newest:
                parents = [found[newest[parent]] for parent in graph[key] if parent in newest]
                found[newest[key]] = _compute_state(newest[key], parents)
        return found

    def get_state(self, captured: Captured) -> TaskState:
        if captured.state is not TaskState.QUEUED or not captured.task.depends_on:
            return captured.state
        return self.states().get(captured, captured.state)


def _compute_state(captured: Captured, parents: Sequence[TaskState]) -> TaskState:
    """Return the state of a task. ``states`` contains the states of captured tasks on which the task depends."""
    policy = captured.task.on_dependency_failure
    if captured.state is not TaskState.QUEUED:
        return captured.state
    if policy != "run" and (TaskState.CANCELED in parents or (policy == "cancel" and TaskState.FAILED in parents)):
        return TaskState.CANCELED
    is_free = all(parent.is_ended if policy == "run" else parent is TaskState.FINISHED for parent in parents)
    return TaskState.QUEUED if is_free else TaskState.DEFERRED


class CapturedQueue:
    """Replaces a `FairQueue` in tests: it has the methods that push tasks or that handles call. All other methods need
    a server.
    """

    def __init__(self, capture: Capture, name: str) -> None:
        self._capture, self._store, self.name = capture, capture.store, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(
            f"queue {self.name!r}: {name!r} needs a server, and tests do not use the server that settings name. Use a private "
            "one (django_fairque.testing.private_server, or the pytest fixture fairque_server), or set "
            'FAIRQUE["CAPTURE_IN_TESTS"] to False'
        )

    def push(self, task: Task, *, now: float | None = None) -> PushResult:  # noqa: ARG002 - as FairQueue's
        return self._capture.keep(self.name, [task])[0]

    def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:  # noqa: ARG002
        return self._capture.keep(self.name, list(tasks))

    def push_graph(
        self,
        tasks: Sequence[Task],
        run_id: str | None = None,
        *,
        now: float | None = None,  # noqa: ARG002
    ) -> list[PushResult]:
        kept = tasks if run_id is None else [task.model_copy(update={"run_id": run_id}) for task in tasks]
        return self._capture.keep(self.name, kept)

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
        queued = [other for other, state in states.items() if state is TaskState.QUEUED and not other.is_rolled_back]
        queued = [other for other in queued if (other.queue, other.user_id) == mine]
        return sorted(queued, key=lambda other: -class_of(other.lane, other.priority)).index(captured)

    def starts_in(self, task_id: str) -> StartEstimate:
        from django_fairque.engine.users.start_estimates import StartEstimate  # loads redis-py

        return StartEstimate(None, None, "not_queued" if self.position(task_id) is None else "no_worker")

    def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        found = {task_id: self._store.find(self.name, task_id) for task_id in task_ids}
        return {task_id: _record(*member) for task_id, member in found.items() if member is not None}

    def cancel(self, task_id: str, *, reason: str = "") -> bool:
        return _cancel(*self._find(task_id), reason=reason)

    def run(self, run_id: str) -> RunView:
        return RunView(run_id, tuple(_record(*member) for member in self._members(run_id)))

    def cancel_run(self, run_id: str, *, note: Note = None) -> int:
        # The last task first, as in a real queue: otherwise the cancellation of a task could make its dependents ready.
        members = reversed(self._members(run_id))
        done = [member[1].task.task_id for member in members if _cancel(*member, reason=f"run {run_id} was canceled")]
        if note is not None:
            note(done)
        return len(done)

    def _find(self, task_id: str) -> tuple[Store, Captured]:
        found = self._store.find(self.name, task_id)
        if found is None:
            raise TaskNotFoundError(f"no task {task_id!r} of queue {self.name!r} was captured")
        return found

    def _members(self, run_id: str) -> list[tuple[Store, Captured]]:
        members = [member for member in self._store.iterate_known_tasks(self.name) if member[1].task.run_id == run_id]
        if not members:
            raise TaskNotFoundError(f"no task of run {run_id!r} in queue {self.name!r} was captured")
        return members


class AsyncCapturedQueue:
    """Replaces an asynchronous queue in tests, with the same methods as `CapturedQueue`."""

    def __init__(self, queue: CapturedQueue) -> None:
        self._queue, self.name = queue, queue.name

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("__"):
            raise AttributeError(name)
        ask = getattr(self._queue, name)

        async def answer(*args: Any, **kwargs: Any) -> Any:
            return ask(*args, **kwargs)

        return answer


def _record(store: Store, captured: Captured) -> Task:
    found = {name: getattr(captured, name) for name in ("result", "started_at", "ended_at", "worker")}
    return captured.task.model_copy(update={"state": store.get_state(captured), **found})


def _cancel(store: Store, captured: Captured, *, reason: str) -> bool:
    if store.get_state(captured).is_ended:
        return False
    captured.become(TaskState.CANCELED)
    captured.attempts.append(Attempt(time.time(), "canceled", "", reason))
    return True


MAX_RUN_TASKS = 10_000
"""Maximum number of tasks that one `Capture.run` runs, so that tasks that enqueue each other endlessly end with an
error."""


_keeping = threading.RLock()
"""A lock that is held while tasks are captured, because the threads of a live server enqueue tasks too."""


class Capture:
    """The captured tasks of a block or a test. Iterating and indexing return the tasks that would be sent, in the order
    of their calls. A capture is made by `capture_tasks` and `eager` for a block; `enqueued` is the capture of the whole
    test.
    """

    def __init__(
        self,
        around: Capture | None = None,
        *,
        runs_at_once: bool = False,
        raise_errors: bool = True,
        retries: bool = False,
    ) -> None:
        self._runs_at_once, self._raise_errors, self._retries = runs_at_once, raise_errors, retries
        self.store = Store()
        self.begin(around)

    def begin(self, around: Capture | None = None) -> None:
        """Start with an empty capture, as at the start of each test. Tasks are also added to the capture ``around``
        this one; None (the default) if there is none.
        """
        self.store = Store(None if around is None else around.store)
        self.xcom: dict[str, dict[str, Any]] = {} if around is None else around.xcom
        """The values that tasks have shared, by namespace (the id of a run)."""

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
        """The captured tasks in their order, without tasks that were canceled or rolled back."""
        return self.store.list_kept_tasks()

    def of(self, task: Any) -> list[Captured]:
        """Return the calls of one ``task``, given as the task or its name."""
        name = get_task_name(task)
        return [captured for captured in self if captured.name == name]

    def clear(self) -> None:
        """Forget all tasks that were captured so far, and end the windows of `unique_for`."""
        self.store.clear()

    def intercept(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
        """Capture ``tasks`` that are enqueued with ``options``, instead of sending them. Returns a handle for each
        task.
        """
        hook = None
        if not self._runs_at_once and sending.may_wait(conf.get_config(), options):
            hook = commit_buffer.find_commit_hook(options.database)
        pushed = self.keep(options.queue, tasks, hook)
        return [
            TaskResult(result.task_id, options.queue, name=task.name)
            for task, result in zip(tasks, pushed, strict=True)
        ]

    def keep(self, queue: str, tasks: Sequence[Task], hook: CommitBuffer | None = None) -> list[PushResult]:
        """Capture ``tasks`` for the queue with the name ``queue``, instead of pushing them. ``hook`` is the commit hook
        that sends the tasks; None (the default) without a transaction. Returns the result of the push for each task.
        """
        with _keeping:
            results = [self._keep(Captured(task, queue, hook)) for task in tasks]
        if self._runs_at_once:
            self.run(raise_errors=self._raise_errors, retries=self._retries)
        return results

    def queue(self, name: str) -> Any:
        """Return the object that handles use instead of the queue with this ``name``."""
        return CapturedQueue(self, name)

    def aqueue(self, name: str) -> Any:
        """Return the object that handles use in coroutines instead of the queue with this ``name``."""
        return AsyncCapturedQueue(self.queue(name))

    def _keep(self, made: Captured) -> PushResult:
        """Add a call to the capture. If the call is a duplicate of a captured one, treat it as a queue would."""
        task = made.task
        for known in self.store.alike(made.queue, task):
            is_live = not known.state.is_ended
            is_same_work = bool(task.unique_key) and known.task.unique_key == task.unique_key
            is_same_work = is_same_work and known.user_id == task.user_id
            # The window of `unique_for` does not end during a test, because a test must not depend on how long it
            # takes.
            if (is_live and known.id == task.task_id) or (is_same_work and (is_live or task.unique_for is not None)):
                if task.debounce is not None and is_same_work:  # with debounce, the last call replaces the earlier one
                    known.task = known.task.model_copy().set_payload_bytes(task.payload_bytes)
                    known.args, known.kwargs = made.args, made.kwargs
                return PushResult(known.id, "duplicate")
        self.store.add(made)
        return PushResult(made.id, "accepted")

    def run(self, *queues: str, raise_errors: bool = True, retries: bool = False) -> int:
        """Run the captured tasks, and the tasks that they enqueue, in this thread. Returns how many tasks ran.

        ``queues`` are names of queues; all queues by default. A task runs after the tasks on which it depends. A batch
        task is called with as many items as in a worker. With ``retries``, a failed task is run again at once, as often
        as a worker would run it again later; by default (False) no task is retried. With ``raise_errors`` (the
        default), the error of a failed task is raised; if False, the error is stored in ``Captured.error``.

        Raises `RuntimeError` if more than 10,000 tasks run, and `TaskNotRegisteredError` if a task is not registered.
        """

        for name in queues:
            conf.get_config().queue_config(name)
        count = 0
        while ready := self._ready(queues):
            for batch in _batches(ready):
                # A task of the batch that ran earlier may have run or canceled this task.
                together = list(filter(_is_waiting, batch))
                count += len(together)
                if count > MAX_RUN_TASKS:
                    raise RuntimeError(
                        f"{MAX_RUN_TASKS} tasks have run and there are more: do they enqueue each other?"
                    )
                if together:
                    run_captured(self, together, raise_errors=raise_errors, retries=retries)
        return count

    def _ready(self, queues: Sequence[str]) -> list[Captured]:
        ready = [captured for captured, state in self.store.states().items() if state is TaskState.QUEUED]
        return [captured for captured in ready if (not queues or captured.queue in queues) and _is_waiting(captured)]

    def read_results(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the results of those tasks in ``ids`` that have finished, by task id, in the form in which their
        functions returned them. Each result is a copy, as for each reader of a real queue.

        ``ids`` are the tasks' ids.
        """
        by_id = {captured.id: captured for captured in self.store.tasks}
        return {
            task_id: load_result(by_id[task_id].name, deepcopy(by_id[task_id].result))
            for task_id in ids
            if task_id in by_id and by_id[task_id].state is TaskState.FINISHED
        }


def _is_waiting(captured: Captured) -> bool:
    return captured.state is TaskState.QUEUED and captured.is_kept


def _batches(ready: Sequence[Captured]) -> list[list[Captured]]:
    """Divide tasks into calls. Tasks of one batch task form a call up to the batch size, in the position of the first
    of them. Other tasks form separate calls.
    """
    batches: list[list[Captured]] = []
    newest: dict[tuple[str, str], list[Captured]] = {}
    for captured in ready:
        definition, key = registry.find(captured.name), (captured.queue, captured.name)
        size = (definition.options.batch if definition else None) or 1
        if key not in newest or len(newest[key]) == size:
            newest[key] = []
            batches.append(newest[key])
        newest[key].append(captured)
    return batches


@contextmanager
def capture_tasks() -> Iterator[Capture]:
    """Capture the tasks that are enqueued in a ``with`` block. Yields the capture.

    In a test run, `enqueued` captures all tasks. This capture contains only the tasks of the block, and its windows of
    `unique_for` begin with the block. A task that is enqueued inside a transaction counts as sent at once, because the
    transaction of a test never commits. If its savepoint is rolled back, the task does not count.
    """
    capture = Capture(innermost())
    with intercept_tasks(capture):
        yield capture


@contextmanager
def eager(*, raise_errors: bool = True, retries: bool = False) -> Iterator[Capture]:
    """Run each task directly when it is enqueued, before `enqueue` returns. Yields the capture.

    With ``raise_errors`` (the default), `enqueue` raises the task's error; if False, the task's result is FAILED. With
    ``retries``, a failed task is run again at once, as often as a worker would run it again later, and only the last
    error is raised; by default (False) no task is retried.
    """
    capture = Capture(innermost(), runs_at_once=True, raise_errors=raise_errors, retries=retries)
    with intercept_tasks(capture):
        yield capture


enqueued = Capture()
"""The tasks that the current test has enqueued, in all threads. The capture is empty when a test begins."""


@functools.cache
def begin_to_capture() -> Capture:
    """Return `enqueued`. From now on, each of Django's test cases empties this capture at the moment when it empties
    ``mail.outbox``.

    ``mail.outbox`` itself can't be watched, because a test may assign another list to it at any time.
    """
    from django.test import SimpleTestCase

    case: Any = SimpleTestCase
    set_up = case._pre_setup.__func__  # noqa: SLF001 - what is public runs before or after the fixtures are loaded

    def pre_setup(cls: type[SimpleTestCase]) -> None:
        enqueued.begin()
        set_up(cls)

    case._pre_setup = classmethod(pre_setup)  # noqa: SLF001
    return enqueued


def innermost() -> Capture | None:
    """Return the innermost open capture. In a test run there always is one, except in tests that use a server."""
    interceptor = current_interceptor()
    return interceptor if isinstance(interceptor, Capture) else None


def as_kept(value: Any, *, limit: int = json_payload.MAX_PAYLOAD_BYTES, what: str = "payload") -> Any:
    """Return ``value`` in the form in which a queue would return it. Raises `TaskSerializationError` for a value that a
    queue refuses.
    """
    return json_payload.loads(json_payload.dumps(value, limit=limit, what=what))


class Values:
    """Replaces the `XCom` of a run in tests. Each reader gets a separate copy of a value, which it may change, as from
    a real queue.
    """

    def __init__(self, values: dict[str, Any], namespace: str, limit: int) -> None:
        self._values, self.namespace, self._limit = values, namespace, limit

    def push(self, key: str, value: Any, *, ttl: float | None = None) -> None:
        self.push_many({key: value}, ttl=ttl)

    def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None) -> None:  # noqa: ARG002 - as XCom's
        kept = {
            check_id(key, "an xcom key"): as_kept(value, limit=self._limit, what=f"value {short(key)}")
            for key, value in values.items()
        }
        self._values.update(kept)

    def pull(self, key: str, default: Any = XCOM_VALUE_MISSING) -> Any:
        if key in self._values or default is XCOM_VALUE_MISSING:
            return deepcopy(self._values[key])
        return default

    def items(self) -> dict[str, Any]:
        return deepcopy(dict(sorted(self._values.items())))

    def keys(self) -> list[str]:
        return sorted(self._values)


@dataclass(frozen=True)
class CapturedServices(Services):
    """Provides the services of a worker to captured tasks."""

    capture: Any = None
    captured: Any = None

    def parent_results(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002 - there is only this one
        found: dict[str, Any] = self.capture.read_results(self.captured.task.depends_on)
        return found

    def xcom(self, namespace: str, user: str) -> Any:  # noqa: ARG002 - captured values have no limit
        return Values(self.capture.xcom.setdefault(namespace, {}), namespace, self.config.max_payload_bytes)

    def close_limit(self, lease: Lease, key: str, until: float | timedelta | datetime) -> None:
        encode_end(until)
        self.captured.closed_limits[find_limit(lease, key)[0]] = until


def run_captured(capture: Capture, together: Sequence[Captured], *, raise_errors: bool, retries: bool) -> None:
    """Call the function once, for one task or for several tasks of a batch. With ``raise_errors``, raise the first
    error.
    """
    definition = registry.get(together[0].name)
    runs = [_build_run(capture, captured, definition) for captured in together]
    for captured, run in zip(together, runs, strict=True):
        captured.worker = run.lease.worker
        captured.become(TaskState.STARTED)
    for captured, run, value in zip(together, runs, _call_function(runs), strict=True):
        # the outcome is ignored if the task was canceled while it ran
        if captured.state is TaskState.STARTED:
            _end_task(captured, run, value, retries=retries)
    errors = [captured.error for captured in together if captured.state is TaskState.FAILED]
    if raise_errors and errors and errors[0] is not None:
        raise errors[0]


def _build_run(capture: Capture, captured: Captured, definition: AnyDefinition) -> Run:
    def progress(_: Lease, current: float, total: float, message: str) -> None:
        captured.progress = (current, total, message)

    config = conf.get_config()
    services = CapturedServices(
        captured.queue,
        config.queue_config(captured.queue),
        progress,
        tracing=config.tracing,
        middleware=load_all(config.middleware),
        key_watch=KeyWatch(()),  # captured tasks are not signed, so a project without a key can also run them
        capture=capture,
        captured=captured,
    )
    limit = get_time_limit(captured.task.timeout, definition, services)
    args, kwargs = load_arguments(definition, captured.args, captured.kwargs)
    return Run(make_lease(captured.task, services.config.max_retry_attempts), definition, services, args, kwargs, limit)


def _call_function(runs: Sequence[Run]) -> Sequence[Any]:
    """Call the function. Return the result or the exception of each run."""
    call = Call(runs, errors=Exception)  # other exceptions end the test and are no failure of the task
    function = async_to_sync(call.function) if runs[0].definition.is_async else call.function
    try:
        with call:
            with call.around_function():
                value = function(*call.args, **call.kwargs)
            call.record_result(value)
    finally:
        for context in call.contexts:
            context.flush()
    return call.values


def _end_task(captured: Captured, run: Run, value: Any, *, retries: bool) -> None:
    if not isinstance(value, BaseException):
        try:
            if run.definition.types is not None:
                value = run.definition.types.dump_result(value)
            captured.result = as_kept(value, limit=run.services.config.max_payload_bytes, what="result")
        except TaskSerializationError as error:  # as in a worker, a value that a queue can't store makes the task fail
            value = error.with_traceback(None)
        else:
            captured.become(TaskState.FINISHED)
            return
    if isinstance(value, Retry):
        state, kind, text = TaskState.SCHEDULED, "failed", describe(str(value))
    elif isinstance(value, Discard):
        state, kind, text = TaskState.CANCELED, "discarded", describe(str(value))
    else:
        state, kind, text = TaskState.FAILED, "failed", describe(value)
        captured.error = value
    if retries and captured.is_to_run_again(run, value):
        state = TaskState.QUEUED
    elif retries and state is TaskState.SCHEDULED:
        state, captured.error = TaskState.FAILED, value
    captured.become(state)
    reason, trace = (part.decode() for part in text)
    captured.attempts.append(Attempt(time.time(), kind, run.lease.worker, reason, trace))


def make_lease(task: Task, most_retries: int) -> Lease:
    """Return a lease as a worker would hold it."""
    now = time.time()
    known = {
        "id": task.task_id,
        "token": 1,
        "deliveries": 1,
        "lease": to_us(now + 60),
        "user": task.user_id,
        "name": task.name,
        "priority": class_of(task.lane, task.priority),
        "created": to_us(task.created_at),
        "ready": to_us(task.created_at),
        "retries": task.retry_count,
        "max_retries": min(task.max_retries, most_retries),
        "timeout": "" if task.timeout is None else to_us(task.timeout),
        "deadline": to_us(now + 3600),
        "run": task.run_id,
        "trace": task.trace.encode(),
    }
    values = {name: str(value).encode() for name, value in known.items()} | {"payload": task.payload_bytes}
    return Lease([values.get(name, b"") for name in LEASE_FIELDS], "test", now)
