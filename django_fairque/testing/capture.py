"""`capture_tasks`: what is enqueued is kept instead of sent, can be asserted, and run here and now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.db import DEFAULT_DB_ALIAS

from django_fairque import conf
from django_fairque.conf.current import needing_no_server
from django_fairque.engine.dependencies.xcom import XCOM_VALUE_MISSING
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import TaskSerializationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.engine.model.outcome import describe
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.tasks import registry, sending
from django_fairque.tasks.errors import Discard, Retry
from django_fairque.tasks.execution import Call, Run, Services, limit_of
from django_fairque.tasks.results import TaskResult, interceptors

from .captured import AsyncCapturedQueue, Captured, CapturedQueue, Store, name_of

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.definition import AnyDefinition
    from django_fairque.tasks.on_commit import CommitBuffer
    from django_fairque.tasks.options import TaskOptions

MAX_RUN_TASKS = 10_000
"""Tasks in one `Capture.run`: tasks that enqueue each other for ever end in an error."""


class Capture:
    """The tasks that were enqueued; list-like over those that would be sent, in their order. It is made by
    `capture_tasks` and `eager`.
    """

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
        """The tasks that were enqueued, in their order, without those that were canceled or rolled back."""
        return self._store.kept()

    def of(self, task: Any) -> list[Captured]:
        """Return the calls of one ``task``, which is the task or its name."""
        name = name_of(task)
        return [each for each in self if each.name == name]

    def clear(self) -> None:
        """Forget what was enqueued so far; the windows of `unique_for` end."""
        self._store.clear()

    def intercept(self, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
        """Take these ``tasks`` in place of the queue (for `enqueue`), sent with ``options``. Returns a handle for
        each.
        """
        hook = None
        if not self._runs_at_once and sending.may_wait(options):
            hook = sending.hook_in(options.database or DEFAULT_DB_ALIAS)
        results = [TaskResult(self._keep(options, task, hook).id, options.queue) for task in tasks]
        if self._runs_at_once:
            self.run()
        return results

    def queue(self, name: str) -> Any:
        """Return the object that handles use in place of the queue of this ``name``."""
        return CapturedQueue(self._store, name)

    def aqueue(self, name: str) -> Any:
        """Return the object that handles use in coroutines, in place of the queue of this ``name``."""
        return AsyncCapturedQueue(self.queue(name))

    def _keep(self, options: TaskOptions, task: Task, hook: CommitBuffer | None) -> Captured:
        """What a queue would take it for: the call that it knows already, or a new one."""
        made = Captured(task, options.queue, hook)
        for known in self._store.alike(made.queue, task):
            is_live = not known.state.is_ended
            is_same_work = bool(task.unique_key) and known.task.unique_key == task.unique_key
            is_same_work = is_same_work and known.user_id == task.user_id
            # The window of a `unique_for` never ends here: a test must not depend on how long it takes.
            if (is_live and known.id == task.task_id) or (is_same_work and (is_live or task.unique_for is not None)):
                if task.debounce is not None and is_same_work:  # the last call counts
                    known.task = known.task.model_copy().carrying(task.payload_bytes)
                    known.args, known.kwargs = made.args, made.kwargs
                return known
        self._store.add(made)
        return made

    def run(self, *queues: str, raise_errors: bool = True) -> int:
        """Run the captured tasks, and the tasks that they enqueue, in this thread. Returns how many tasks ran.

        ``queues`` are names of queues; all by default. A task runs when those that it depends on have, and a batch
        task is called with what a worker would give it at once. Nothing is tried again. ``raise_errors`` raises the
        error of a task, as by default; if False it is kept in ``Captured.error``.

        Raises `RuntimeError` if more than 10,000 tasks run, and `TaskNotRegisteredError` if one is not registered.
        """

        for name in queues:
            conf.get_config().queue_config(name)
        count = 0
        while ready := self._ready(queues):
            for batch in _batches(ready):
                together = [each for each in batch if _is_waiting(each)]  # not if one before it has run or canceled it
                count += len(together)
                if count > MAX_RUN_TASKS:
                    raise RuntimeError(
                        f"{MAX_RUN_TASKS} tasks have run and there are more: do they enqueue each other?"
                    )
                if together:
                    run_captured(self, together, raise_errors=raise_errors)
        return count

    def _ready(self, queues: Sequence[str]) -> list[Captured]:
        ready = [each for each, state in self._store.states().items() if state is TaskState.QUEUED]
        return [each for each in ready if (not queues or each.queue in queues) and _is_waiting(each)]

    def results_of(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the results of those of these tasks that have finished, by id; a copy, as each reader of a queue has.

        ``ids`` are the tasks' ids.
        """
        by_id = {each.id: each for each in self._store.tasks}
        return {
            task_id: deepcopy(by_id[task_id].result)
            for task_id in ids
            if task_id in by_id and by_id[task_id].state is TaskState.FINISHED
        }


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
    """Capture the tasks that are enqueued in the block instead of sending them. Yields the capture.

    What is enqueued inside a transaction counts as sent at once (a test's transaction never commits) unless its
    savepoint is rolled back.
    """
    with _interceptor(Capture()) as capture:
        yield capture


@contextmanager
def eager() -> Iterator[Capture]:
    """Run each task where it is enqueued, before `enqueue` returns; its errors are raised there. Yields the capture."""
    with _interceptor(Capture(runs_at_once=True)) as capture:
        yield capture


@contextmanager
def _interceptor(capture: Capture) -> Iterator[Capture]:
    interceptors.append(capture)
    try:
        with needing_no_server():
            yield capture
    finally:
        interceptors.remove(capture)


def innermost() -> Capture | None:
    """The innermost capture that is open."""
    return next((interceptor for interceptor in reversed(interceptors) if isinstance(interceptor, Capture)), None)


def as_kept(value: Any, *, limit: int = json_payload.MAX_PAYLOAD_BYTES, what: str = "payload") -> Any:
    """``value`` as it comes back; `TaskSerializationError` for one that a queue refuses."""
    return json_payload.loads(json_payload.dumps(value, limit=limit, what=what))


class Values:
    """`XCom` of a captured run. Each reader has a copy, as of a queue's values: it may change that."""

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
    """What a captured task asks of its worker, answered by the capture."""

    capture: Any = None
    captured: Any = None

    def parent_results(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002 - there is only this one
        found: dict[str, Any] = self.capture.results_of(self.captured.task.depends_on)
        return found

    def xcom(self, namespace: str) -> Any:
        return Values(self.capture.xcom.setdefault(namespace, {}), namespace, self.config.max_payload_bytes)


def run_captured(capture: Capture, together: Sequence[Captured], *, raise_errors: bool) -> None:
    """Call the function once, for one task or for several of a batch task; the first error of theirs is raised."""
    definition = registry.get(together[0].name)
    runs = [_run_of(capture, captured, definition) for captured in together]
    for captured, run in zip(together, runs, strict=True):
        captured.worker = run.lease.worker
        captured.become(TaskState.STARTED)
    for captured, run, value in zip(together, runs, _called(runs), strict=True):
        if captured.state is TaskState.STARTED:  # else it was canceled while it ran: its outcome does not count
            _end_task(captured, run, value)
    errors = [captured.error for captured in together if captured.state is TaskState.FAILED]
    if raise_errors and errors and errors[0] is not None:
        raise errors[0]


def _run_of(capture: Capture, captured: Captured, definition: AnyDefinition) -> Run:
    def progress(_: Lease, current: float, total: float, message: str) -> None:
        captured.progress = (current, total, message)

    config = conf.get_config()
    services = CapturedServices(
        captured.queue,
        config.queue_config(captured.queue),
        progress,
        tracing=config.tracing,
        capture=capture,
        captured=captured,
    )
    limit = limit_of(captured.task.timeout, definition, services)
    return Run(lease_of(captured.task), definition, services, captured.args, captured.kwargs, limit)


def _called(runs: Sequence[Run]) -> Sequence[Any]:
    """What the function says of each task: a result, or an exception."""
    call = Call(runs, errors=Exception)  # others end the test, and are no failure of the task
    function = async_to_sync(call.function) if runs[0].definition.is_async else call.function
    try:
        with call:
            with call.around_function():
                value = function(*call.args, **call.kwargs)
            call.returned(value)
    finally:
        for context in call.contexts:
            context.flush()
    return call.values


def _end_task(captured: Captured, run: Run, value: Any) -> None:
    if not isinstance(value, BaseException):
        try:
            captured.result = as_kept(value, limit=run.services.config.max_payload_bytes, what="result")
        except TaskSerializationError as error:  # a worker refuses what a queue can't keep
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
    captured.become(state)
    captured.attempts.append(Attempt(time.time(), kind, run.lease.worker, *(part.decode() for part in text)))


def lease_of(task: Task) -> Lease:
    """A lease as a worker would hold it."""
    now = time.time()
    known = {
        "id": task.task_id,
        "token": 1,
        "deliveries": 1,
        "lease": to_us(now + 60),
        "user": task.user_id,
        "name": task.name,
        "priority": int(task.priority),
        "created": to_us(task.created_at),
        "ready": to_us(task.created_at),
        "retries": 0,
        "max_retries": task.max_retries,
        "timeout": "" if task.timeout is None else to_us(task.timeout),
        "deadline": to_us(now + 3600),
        "run": task.run_id,
        "trace": task.trace.stored(),
    }
    values = {name: str(value).encode() for name, value in known.items()} | {"payload": task.payload_bytes}
    return Lease([values.get(name, b"") for name in LEASE_FIELDS], "test", now)
