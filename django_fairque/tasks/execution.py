"""Functions with which a worker runs a task: first `prepare`, then `execute` or `aexecute`; `run_batch` for a batch task.

These functions do not raise errors because of a task or of its record: they always return an `Outcome` for
`FairQueue.settle`. Only an exception that was set from outside can escape: a `SoftTimeLimitExceeded` that was set in
the thread after the function had returned, or the `CancelledError` of a coroutine that the worker canceled. The worker
knows the reason, and then calls `failed_outcome` or releases the lease.

`retries.py` decides whether a failed task is tried again, and after how long; `failed_outcome` makes the outcome.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from django_fairque import conf, hooks, signals
from django_fairque.conf.current import signing_mode
from django_fairque.engine.model.errors import TaskSerializationError, short
from django_fairque.engine.model.outcome import Outcome
from django_fairque.safely import Interruption, get_logger, get_message, get_traceback, is_a, type_name
from django_fairque.tasks import registry, signing

from .context import CapturesLogs, RunningTask, running
from .definition import AnyDefinition, handler_definition
from .errors import Discard, Retry, RetryOptions, TaskNotRegisteredError, TaskSignatureError, TaskUsageError
from .middleware import TaskMiddleware, TaskRun, around_function, load_all
from .retries import NextStep, decide_next_step, plan_retry
from .signing import KeyWatch
from .tracing import BAGGAGE_HEADER, NO_SPAN
from .value_types import load_result

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from types import TracebackType

    from typing_extensions import Unpack

    from django_fairque.engine.dependencies.dependencies import XCom
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.queue.queue import FairQueue


__all__ = ["Run", "aexecute", "arun_batch", "execute", "failed_outcome", "prepare", "run_batch"]

logger = get_logger("django_fairque.tasks")


def prepare(lease: Lease, services: Services) -> Run | Outcome:
    """Find the function and the arguments of a leased task.

    ``lease`` is the lease of the task; ``services`` are provided by the worker. Returns the attempt, or an outcome if
    the task can't run in this worker or at all. The worker decides where the attempt runs, with the help of
    ``run.definition.is_async`` and ``run.definition.options.batch``.
    """
    try:
        lease.check()
        if services.signing != "off":
            keys = services.key_watch.keys
            signing.check(lease, queue=services.queue, prefix=services.config.prefix, mode=services.signing, keys=keys)
            services.key_watch.in_a_row = 0
        name = lease.name
        definition = registry.find(name) if name else services.bare
        if definition is None:
            return _snooze(lease, name, services)
        args, kwargs = _arguments(lease, definition)
        timeout = lease.timeout
    except TaskSignatureError as error:
        if not error.is_missing and services.key_watch.is_of_another_key(services.queue_to_read):
            return Outcome.release(lease, delay=signing.MISMATCH_DELAY_SECONDS)
        signing.log_refused(services.queue, lease.task_id, error)
        return Outcome.poison(lease, error.with_traceback(None))
    except (TaskSerializationError, ValueError) as error:  # a damaged record raises one of these errors (see `Lease`)
        return Outcome.poison(lease, error.with_traceback(None))
    return Run(lease, definition, services, args, kwargs, get_time_limit(timeout, definition, services))


def get_time_limit(own: float | None, definition: AnyDefinition, services: Services) -> float | None:
    """Return the task's time limit in seconds: the task's ``own`` limit, or else the limit of its function, of its
    queue or of the worker. None for no limit.
    """
    for limit in (own, definition.options.timeout, services.config.default_task_timeout):
        if limit is not None:
            return limit
    return services.timeout


def execute(run: Run) -> Outcome:
    """Run a task in this thread; an ``async def`` task on a new event loop.

    ``run`` is the attempt that `prepare` returned. Returns the outcome, which also represents errors of the task.
    """
    return run_batch([run])[0]


async def aexecute(run: Run) -> Outcome:
    """Run an ``async def`` task on the running loop, in an `asyncio.Task`.

    ``run`` is the attempt that `prepare` returned. Returns the outcome. `asyncio.CancelledError` is passed on: the code
    that canceled it decides about the task.
    """
    return (await arun_batch([run]))[0]


def run_batch(runs: Sequence[Run]) -> list[Outcome]:
    """Call the function once for all ``runs``: the tasks of one batch, or a single task. Returns one outcome for each
    run, in the order of ``runs``.
    """
    if runs[0].definition.is_async:
        return async_to_sync(arun_batch)(runs)
    call = Call(runs)
    with call:
        for run in runs:
            signals.send_task_started(run.services.queue, run.lease)
        with call.around_function():
            value = call.function(*call.args, **call.kwargs)
        call.record_result(value)
    for context in call.contexts:
        context.flush()
    return call.outcomes()


async def arun_batch(runs: Sequence[Run]) -> list[Outcome]:
    """Await the function once for all ``runs``, like `run_batch`. Returns one outcome for each run, in the order of
    ``runs``.

    `asyncio.CancelledError` is passed on to the code that canceled it.
    """
    call = Call(runs)
    with call:
        for run in runs:
            await signals.asend_task_started(run.services.queue, run.lease)
        with call.around_function():
            value = await call.function(*call.args, **call.kwargs)
        call.record_result(value)
    for context in call.contexts:
        if context.has_reports:
            await asyncio.to_thread(context.flush)
    return call.outcomes()


class Call:
    """One call of a task's function, for one run or for all runs of a batch, in a thread or a coroutine.

    The context manager sets `current_task`, and records an exception of the function as the task's failure. ``errors``
    are the classes of exceptions that are recorded; by default all.
    """

    def __init__(self, runs: Sequence[Run], errors: type[BaseException] = BaseException) -> None:
        definition = runs[0].definition
        self._runs, self._errors = runs, errors
        self._is_batch = bool(definition.options.batch)
        self._started = self._took = 0.0
        self._frames = 1
        """The number of the package's stack frames between this call and the task's function."""
        self.values: Sequence[Any] = ()
        """For each run, the value that the function returned or the exception that it raised."""
        self.function = definition.function
        first = runs[0]
        self.args, self.kwargs = first.args, first.kwargs
        self.contexts = [RunningTask(first.lease, first.services, first.timeout)]
        if self._is_batch:
            self.contexts += [RunningTask(run.lease, run.services, run.timeout) for run in runs[1:]]
            self.contexts[0].lead(tuple(self.contexts))
            self.args = [[run.args[0] for run in runs]]
        elif definition.options.capture_logs is not None and first.services.capture_logs is not None:
            if first.log_capture is None:
                first.log_capture = first.services.capture_logs(first.lease, definition.options.capture_logs)
            self.contexts[0].log_capture = first.log_capture
        if first.services.middleware or definition.options.middleware:
            middleware = (*first.services.middleware, *load_all(definition.options.middleware))
            task_run = TaskRun(self.contexts, definition.name, is_async=definition.is_async)
            self.function, self._frames = around_function(definition.function, middleware, task_run), 2

    def __enter__(self) -> None:
        self._token = running.set(self.contexts[0])

    def around_function(self) -> AbstractContextManager[object]:
        """Return a context manager that measures the time of the function, and opens a span around it if tracing is
        on.
        """
        self._started = perf_counter()
        first = self._runs[0]
        if not first.services.tracing or hooks.tracing is None:
            return NO_SPAN
        baggage = {context.headers.get(BAGGAGE_HEADER, "") for context in self.contexts}
        return hooks.tracing.run_span(
            first.services.queue,
            first.definition.name,
            [run.lease for run in self._runs],
            baggage.pop() if len(baggage) == 1 else "",
        )

    def record_result(self, value: Any) -> None:
        self._took = perf_counter() - self._started
        self.values = values_by_item(value, len(self._runs)) if self._is_batch else [value]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        running.reset(self._token)
        if error is None or not is_a(error, self._errors):
            return False
        if is_a(error, asyncio.CancelledError) and self._runs[0].definition.is_async:
            return False
        self._took = self._took or perf_counter() - self._started
        self.values = [_from_the_task(error, self._frames)] * len(self._runs)
        return True

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each run. The time is divided equally between the runs of a batch, because the time of
        a single item is unknown.
        """
        values, self.values = self.values, ()  # the error, its traceback and this frame would keep each other alive
        if not self._is_batch:
            return [_outcome(self._runs[0], values[0], self._took)]
        took = self._took / len(self._runs)
        return list(map(_outcome, self._runs, values, repeat(took)))


def _outcome(run: Run, value: Any, took: float) -> Outcome:
    is_error = issubclass(type(value), BaseException)  # `isinstance` may call code of the class
    return failed_outcome(run, value, took) if is_error else finished_outcome(run, value, took)


def _from_the_task(error: BaseException, frames: int) -> BaseException:
    """Return the error without the first ``frames`` entries of its traceback, so that the traceback begins in the
    task's own code.
    """
    trace = get_traceback(error)
    while frames and trace and trace.tb_next:
        frames, trace = frames - 1, trace.tb_next
    return BaseException.with_traceback(error, trace)


def _snooze(lease: Lease, name: str, services: Services) -> Outcome:
    reason: TaskNotRegisteredError | str = (
        "a bare payload, and the worker has no HANDLER for those in FAIRQUE['WORKER']"
    )
    if name:
        reason = registry.not_registered(name)
        if services.unknown.should_warn(name):
            logger.warning(
                "task %.80r of user %.80r can't run: %s. Other workers may take such tasks for %g s, then they are dead letters",
                *(lease.task_id, lease.user_id, reason, services.unknown.grace),
            )
    if services.unknown.may_wait(lease.task_id):
        return Outcome.retry(lease, reason, delay=services.unknown.delay, took=0.0)
    return Outcome.fail(lease, reason, delay=None, took=0.0)


def _arguments(lease: Lease, definition: AnyDefinition) -> tuple[list[Any], dict[str, Any]]:
    return decode_arguments(lease.payload, definition) if lease.name else ([lease.payload], {})


def decode_arguments(payload: Any, definition: AnyDefinition) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments for the function from the decoded payload. Raise `TaskSerializationError` if they don't fit
    the function's annotations.
    """
    if isinstance(payload, dict) and len(payload) == 2 + ("about" in payload):
        args, kwargs = payload.get("args"), payload.get("kwargs")
        is_one_item = isinstance(args, list) and len(args) == 1 and not kwargs
        if isinstance(args, list) and isinstance(kwargs, dict) and (is_one_item or not definition.options.batch):
            return load_arguments(definition, args, kwargs)
    raise TaskSerializationError(
        f"the payload of task {definition.name!r} must be an object of args (a list) and kwargs (an object), as enqueue "
        "makes it; push other payloads without a name, for the worker's handler"
    )


def load_arguments(
    definition: AnyDefinition, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments for the function from the arguments in the payload. Raise `TaskSerializationError` if they
    don't fit the function's annotations.
    """
    if definition.types is None:
        return args, kwargs
    try:
        return definition.types.load(args, kwargs)
    except TaskSerializationError as error:
        raise TaskSerializationError(
            f"{definition.name}: {error}. A process with another version of the code may have sent the task; requeue it when "
            "the versions fit, or with its payload edited"
        ) from None


UNKNOWN_TASK_GRACE_SECONDS = 600.0
"""Seconds for which a worker puts off a task with an unknown name. After that the task fails."""
UNKNOWN_TASK_DELAY_SECONDS = 30.0
"""Seconds until a task with an unknown name is offered again, perhaps to a worker that knows the name."""
MAX_UNKNOWN_TASKS = 10_000
"""Maximum number of tasks with unknown names that are remembered. When this number is reached, new tasks with unknown
names are put off until there is room.
"""
MAX_UNKNOWN_NAMES = 100
"""Maximum number of unknown names that are remembered for reports."""
UNKNOWN_NAME_SECONDS = 3 * UNKNOWN_TASK_DELAY_SECONDS
"""Seconds without a task of an unknown name, after which this process no longer reports the name: either another worker
runs its tasks, or no such task is enqueued any more."""


@dataclass(eq=False)
class UnknownTasks:
    """The fetched tasks whose names this process does not know, each with the time when it was first fetched.
    Thread-safe.

    Args:
        grace: seconds for which a task is put off before it fails.
        delay: seconds until the task is offered again.
        memory: the maximum number of tasks that are remembered.
        clock: returns seconds, like `time.monotonic`.
    """

    grace: float = UNKNOWN_TASK_GRACE_SECONDS
    delay: float = UNKNOWN_TASK_DELAY_SECONDS
    memory: int = MAX_UNKNOWN_TASKS
    clock: Callable[[], float] = time.monotonic
    _first_seen: dict[str, float] = field(default_factory=dict)
    """The time when this process first fetched each task with an unknown name, by task id. The oldest entry is the
    first."""
    _names: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Two times for each unknown name: when a warning about the name was logged, and when the last task with that name
    was fetched."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def should_warn(self, name: str) -> bool:
        """Record that a task with this unknown name was fetched. Return whether to log a warning, once for each name
        and grace period.
        """
        now = self.clock()
        with self._lock:
            warned_at = self._names.get(name, (now - self.grace, now))[0]
            if name not in self._names and len(self._names) >= MAX_UNKNOWN_NAMES:
                return False
            is_due = now - warned_at >= self.grace
            self._names[name] = (now if is_due else warned_at, now)
            return is_due

    def names(self) -> list[str]:
        """Return the sorted unknown names of tasks that were fetched in the last `UNKNOWN_NAME_SECONDS`."""
        if not self._names:
            return []
        now = self.clock()
        with self._lock:
            gone = [name for name, (warned_at, _) in self._names.items() if now - warned_at >= 2 * self.grace]
            for name in gone:
                del self._names[name]
            return sorted(
                name for name, (_, last_seen) in self._names.items() if now - last_seen < UNKNOWN_NAME_SECONDS
            )

    def may_wait(self, task_id: str) -> bool:
        """Return whether to put off the task with an unknown name once more. False if its grace period is over."""
        now = self.clock()
        with self._lock:
            first_seen = self._first_seen.get(task_id)
            if first_seen is not None and now - first_seen >= self.grace:
                del self._first_seen[task_id]
                return False
            if first_seen is None:
                # forget tasks whose grace period ended long ago, because another worker has run them
                while self._first_seen:
                    oldest = next(iter(self._first_seen))
                    if now - self._first_seen[oldest] < 2 * self.grace:
                        break
                    del self._first_seen[oldest]
                if len(self._first_seen) < self.memory:
                    self._first_seen[task_id] = now
            return True


@dataclass(frozen=True)
class Services:
    """The services that a worker provides to the tasks of one queue.

    Args:
        queue: the queue's name.
        config: the queue's own options (retries, size limit).
        send_progress: function that sends a progress report: ``(lease, current, total, message)``. The call may block
            and may raise any error of the engine, and is never made in an event loop's thread.
        handler: called with the payload of tasks without a name (``WorkerConfig.handler``).
        timeout: the time limit in seconds of a task for which neither the task nor its queue sets a limit.
        own_queue: the queue to read from; by default the configured one of this name.
        tracing: whether each run has a span of OpenTelemetry.
        middleware: the middleware of the setting ``MIDDLEWARE``.
        signing: how signatures are used: on, off or verify-only.
        key_watch: watches the keys that sign tasks; made when the worker started.
        capture_logs: function that starts to capture the log lines of an attempt, from a level on; None outside of a
            worker.
        revoked: the leases of tasks that were canceled while this worker held them; any thread may change these at any
            time.
    """

    queue: str
    config: QueueConfig
    send_progress: Callable[[Lease, float, float, str], object]
    handler: Callable[[Any], Any] | None = None
    timeout: float | None = None
    revoked: AbstractSet[LeaseKey] = frozenset()
    own_queue: FairQueue | None = None
    tracing: bool = False
    middleware: tuple[TaskMiddleware, ...] = ()
    signing: str = field(default_factory=signing_mode)
    capture_logs: Callable[[Lease, int], CapturesLogs] | None = None
    unknown: UnknownTasks = field(default_factory=UnknownTasks)
    key_watch: KeyWatch = field(default_factory=KeyWatch)

    @cached_property
    def bare(self) -> AnyDefinition | None:
        """Return the definition of the task that runs bare payloads (tasks without a name)."""
        return None if self.handler is None else handler_definition(self.handler)

    def parent_results(self, task_id: str) -> dict[str, Any]:
        """Read the results of the tasks that ``task`` depends on. Blocks."""
        return self.queue_to_read.parent_results(task_id, load_result)

    def xcom(self, namespace: str, user: str) -> XCom:
        return self.queue_to_read.xcom(namespace, user=user)

    def close_limit(self, lease: Lease, key: str, until: float | timedelta | datetime) -> None:
        """Close one of the limits that the task of ``lease`` declares: no task of this limit starts until the moment ``until``
        (`TaskContext.close_limit`). Sends a request, which blocks the calling thread.
        """
        filled, user = find_limit(lease, key)
        self.queue_to_read.limit(filled, user).close(until)

    @property
    def queue_to_read(self) -> FairQueue:
        """Return the queue from which the tasks are fetched. Its methods block."""
        return self.own_queue or conf.get_queue(self.queue)


def find_limit(lease: Lease, key: str) -> tuple[str, str | None]:
    """Return the key of a running task's limit with its names filled in, and the user of the limit; None as user for a
    limit that all users share.

    Raises:
        TaskUsageError: the task has no limit with this key.
    """
    definition, keys = registry.find(lease.name) if lease.name else None, []
    if definition is not None and definition.options.limits:
        for limit, filled in definition.limit_keys(lease.user_id, *decode_arguments(lease.payload, definition)):
            if key in (limit.key, filled):
                return filled, lease.user_id if limit.is_of_user else None
            keys.append(limit.key)
    known = f"its limits are {', '.join(map(repr, dict.fromkeys(keys)))}" if keys else "it was declared without limits"
    raise TaskUsageError(f"close_limit: task {lease.name!r} has no limit {short(key)}; {known}")


NO_OUTCOME = object()


class BatchResult:
    """The outcome of each item of a batch. A batch task returns this object to report its items one by one.

    ``items`` is the list that the task was called with, or its length. An item without a report counts as failed and is
    tried again, because it may not have been processed.
    """

    def __init__(self, items: Sized | int) -> None:
        size = items if isinstance(items, int) else len(items)
        self.outcomes: list[Any] = [NO_OUTCOME] * size

    def ok(self, index: int, value: Any = None) -> None:
        """Report that item ``index`` has succeeded; ``value`` (JSON, None by default) is its result.

        Raises `TaskUsageError` if ``value`` is an exception, or if the batch has no such item.
        """
        if is_a(value, BaseException):
            raise TaskUsageError(f"BatchResult.ok: an exception is no result; use fail({index}, …), got {short(value)}")
        self._set_outcome(index, value)

    def fail(self, index: int, error: BaseException | str) -> None:
        """Report that item ``index`` failed with ``error``, an exception or a text. The item is tried again under the
        same conditions as any other failed task.

        Raises `TaskUsageError` if ``error`` has another type, or if the batch has no such item.
        """
        if not is_a(error, (BaseException, str)):
            raise TaskUsageError(f"BatchResult.fail: expected an exception or text, got {short(error)}")
        self._set_outcome(index, RuntimeError(error) if is_a(error, str) else error)

    def retry(
        self, index: int, delay: float | timedelta | None = None, reason: str = "", **options: Unpack[RetryOptions]
    ) -> None:
        """Run item ``index`` again in ``delay`` seconds, for a ``reason``, as `Retry` does, with the same defaults.

        ``options`` are ``counts``, ``max`` and ``deadline`` of `Retry`.
        """
        self._set_outcome(index, Retry(delay, reason, **options))

    def discard(self, index: int, reason: str = "") -> None:
        """End item ``index`` as CANCELED, for a ``reason`` (empty by default), as `Discard` does."""
        self._set_outcome(index, Discard(reason))

    def __len__(self) -> int:
        return len(self.outcomes)

    def _set_outcome(self, index: int, outcome: Any) -> None:
        size = len(self.outcomes)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
            raise TaskUsageError(
                f"BatchResult: the index of an item must be an integer from 0 to {size - 1}, got {short(index)}"
            )
        self.outcomes[index] = outcome


def values_by_item(value: Any, size: int) -> Sequence[Any]:
    """Return the function's result or exception for each item of the batch."""
    if value is None:
        return [None] * size
    if not isinstance(value, (list, tuple, BatchResult)):
        raise TaskUsageError(
            "a batch task returns None (all are done), a list with the result or exception of each item, or a "
            f"BatchResult; got {type(value).__name__}"
        )
    if len(value) != size:
        raise TaskUsageError(
            f"a batch task was called with {size} items and must answer for each of them; it returned {len(value)} answers"
        )
    if isinstance(value, BatchResult):
        missing = TaskUsageError("the batch task's BatchResult says nothing of this item")
        return [missing if outcome is NO_OUTCOME else outcome for outcome in value.outcomes]
    return value


@dataclass(eq=False)
class Run:
    """An attempt that can begin, made by `prepare`. ``lease`` is the lease of the task, ``definition`` the task's
    declaration, and ``services`` are provided by the worker. ``args`` and ``kwargs`` are the arguments. ``timeout`` is
    in seconds, None for no limit.
    """

    lease: Lease
    definition: AnyDefinition
    services: Services
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: float | None
    log_capture: CapturesLogs | None = None
    """Captures the log lines of the attempt from its beginning; None if they are not captured. The worker closes the
    capture at the end."""


def finished_outcome(run: Run, value: Any, took: float) -> Outcome:
    """Return the outcome of a task that returned ``value``. If the value can't be stored, the task fails for good,
    because another attempt would return such a value again.

    Code of the value's class may raise any exception here.
    """
    try:
        if run.definition.types is not None:
            value = run.definition.types.dump_result(value)
        return Outcome.finish(run.lease, value, took=took, limit=run.services.config.max_payload_bytes)
    except TaskSerializationError as error:
        return Outcome.fail(run.lease, error.with_traceback(None), delay=None, took=took)
    except BaseException as error:
        if is_a(error, Interruption):
            raise
        reason = TaskSerializationError(
            f"the result is not JSON: converting it raised {type_name(error)}: {get_message(error)}"
        )
        return Outcome.fail(run.lease, reason, delay=None, took=took)


def failed_outcome(run: Run, error: BaseException, took: float | None = None) -> Outcome:
    """Return the outcome of a task that raised ``error``, or that was stopped with it. KeyboardInterrupt and SystemExit
    count as failures of the task too.

    ``run`` is the attempt. ``took`` is the worker time in seconds that is charged to the user; by default, the time
    since the lease began.
    """
    step = decide_next_step(error, run.definition, retries_left=1)  # the server checks that a retry is left
    if step is NextStep.GIVE_BACK:
        # A positive `took` shows the server that the task has begun. If `max_deliveries` is 1, such a task does not
        # start a second time.
        return Outcome.release(run.lease, took=took)
    if step is NextStep.CANCEL:
        return Outcome.discard(run.lease, get_message(error), took=took)
    is_final = step is NextStep.FAIL
    delay, limits = (None, "") if is_final else plan_retry(error, run.lease, run.definition, run.services.config)
    if step is NextStep.POSTPONE and delay is not None:
        outcome = Outcome.retry(run.lease, get_message(error), delay=delay, took=took)
    else:
        outcome = Outcome.fail(run.lease, error, delay=delay, took=took)
    outcome.limits = limits
    return outcome
