"""The data of the running task: `current_task`."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast

from django_fairque.engine.model.errors import StaleLeaseError, short
from django_fairque.engine.model.ids import PerProcess
from django_fairque.engine.model.lanes import Lane, check_lane
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.trace_context import NO_TRACE, Trace
from django_fairque.safely import get_logger

from .errors import Discard, NamesReplacements, TaskUsageError
from .options import user_id

if TYPE_CHECKING:
    import logging
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta
    from types import TracebackType

    from django_fairque.engine.dependencies.dependencies import XCom
    from django_fairque.engine.model.lease import Lease, LeaseKey

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

METADATA_KEY, HEADERS_KEY = "about", "headers"
"""Keys of a task's headers in its payload. Workers of earlier versions accept the first key and ignore its content."""
PROGRESS_INTERVAL_SECONDS = 0.1
"""Minimum seconds between two progress reports of one task."""
PROGRESS_MESSAGE_BYTES = 1000
"""Maximum length of a progress message in bytes. A longer message would have to count towards a limit of its user, as
the bytes of a result do."""

logger = get_logger("django_fairque.tasks")


class Reports:
    """The progress reports of one running task."""

    def __init__(self, task_id: str, send: Callable[[float, float, str], object]) -> None:
        self._task_id = task_id
        self._send = send
        self._newest: tuple[float, float, str] | None = None
        # only one report is sent at a time; otherwise an older report could be sent after a newer one
        self._sending = threading.Lock()
        self.due = -math.inf
        self.lease_lost = False
        """Whether the server refused a report, because the task now belongs to another worker."""

    def put(self, report: tuple[float, float, str]) -> None:
        self._newest = report
        report_senders.get().add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether `flush` would send a report, or wait until a report is sent."""
        return self._newest is not None or self._sending.locked()

    def flush(self) -> None:
        """Send the newest report if it has not been sent. Blocks."""
        with self._sending:
            newest, self._newest = self._newest, None
            if newest is None:
                return
            self.due = time.monotonic() + PROGRESS_INTERVAL_SECONDS
            try:
                self._send(*newest)
            except StaleLeaseError:
                self.lease_lost = True
            except Exception:
                logger.warning("the progress of task %s could not be recorded", self._task_id, exc_info=True)


class DueReport(Protocol):
    """A report that the sending thread sends when the time ``due`` (`time.monotonic()`) has come."""

    due: float

    def flush(self) -> None: ...


class ReportSender:
    """The thread that sends progress reports and log lines. The first report of the process starts the thread."""

    def __init__(self) -> None:
        self._waiting: set[DueReport] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, reports: DueReport) -> None:
        """Send the report as soon as it is due."""
        with self._changed:
            if reports in self._waiting:
                return
            self._waiting.add(reports)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="fairque-progress", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            for reports in self._take():
                reports.flush()

    def _take(self) -> list[DueReport]:
        """Wait until at least one report is due, and remove and return all due reports."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [reports for reports in self._waiting if reports.due <= now]
                if due:
                    self._waiting.difference_update(due)
                    return due
                soonest = min((reports.due for reports in self._waiting), default=None)
                self._changed.wait(None if soonest is None else soonest - now)


report_senders = PerProcess(ReportSender)
"""One `ReportSender` for each process, because threads do not survive a fork."""


def check_progress(current: object, total: object, message: object) -> tuple[float, float, str]:
    """Return the values of a report. Raises `TaskUsageError` if a value is not valid."""
    for what, value in (("current", current), ("total", total)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise TaskUsageError(f"progress: {what} must be a finite number, got {short(value)}")
    if not isinstance(message, str):
        raise TaskUsageError(f"progress: the message must be text, got {short(message)}")
    kept = message.encode(errors="replace")[:PROGRESS_MESSAGE_BYTES].decode(errors="ignore")
    return current, total, kept  # type: ignore[return-value] # the values are numbers


class WorkerServices(Protocol):
    """The functions of the worker that a running task uses (`execution.Services`)."""

    @property
    def queue(self) -> str: ...

    @property
    def send_progress(self) -> Callable[[Lease, float, float, str], object]: ...

    @property
    def revoked(self) -> AbstractSet[LeaseKey]: ...

    def parent_results(self, task_id: str) -> dict[str, Any]: ...

    def xcom(self, namespace: str, user: str) -> XCom: ...

    def close_limit(self, lease: Lease, key: str, until: float | timedelta | datetime) -> None: ...


class CapturesLogs(Protocol):
    """Keeps the log lines of one attempt (`worker/reporting/log_capture.py`)."""

    def add(self, record: logging.LogRecord) -> None: ...

    def close(self) -> None: ...


class _NoLease:
    """Replaces the lease in `current_task` outside of a worker."""

    task_id = name = user_id = run_id = ""
    retry_count = max_retries = token = 0
    ready_at = 0.0
    key = ("", 0)
    priority = Priority.NORMAL
    lane: Lane = "normal"
    payload_bytes = b""
    payload: Any = {"args": [], "kwargs": {}}  # noqa: RUF012 - never changed
    trace = NO_TRACE


class _NoServices:
    """Replaces the worker's services in `current_task` outside of a worker."""

    queue = ""
    revoked = frozenset[Any]()

    def parent_results(self, _task_id: str) -> dict[str, Any]:
        return {}

    def xcom(self, _namespace: str, _user: str) -> XCom:
        raise RuntimeError("there is no xcom outside of a worker; use get_queue().xcom(namespace)")

    def close_limit(self, _lease: Lease, _key: str, _until: float | timedelta | datetime) -> None: ...


class TaskContext(NamesReplacements):
    """The running task. Outside of a worker (when the function is simply called) there is no running task: the
    attributes are empty, and the methods do nothing.

    Moments are seconds since the epoch. A worker makes this object from the task's ``lease``, the worker's
    ``services``, and the task's ``timeout`` in seconds; None for no limit.
    """

    __slots__ = ("_batch", "_lease", "_reports", "_services", "_started", "_timeout", "log_capture")

    def __init__(self, lease: Lease, services: WorkerServices, timeout: float | None) -> None:
        self._lease = lease
        self._services = services
        self._timeout = timeout
        self._batch: tuple[TaskContext, ...] = ()
        self._started = time.time()
        self._reports: Reports | None = None
        self.log_capture: CapturesLogs | None = None
        """The object that keeps the log lines of the task; None if they are not kept. Used by the worker."""

    @property
    def id(self) -> str:
        """The task's id; empty outside of a worker."""
        return self._lease.task_id

    @property
    def name(self) -> str:
        """The name under which the task is registered; empty outside of a worker."""
        return self._lease.name

    @property
    def queue(self) -> str:
        """The name of the task's queue; empty outside of a worker."""
        return self._services.queue

    @property
    def user_id(self) -> str:
        """The user of the task; empty if the task has no user."""
        return self._lease.user_id

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1 for the first attempt, one more after each failure (not after a `Retry`)."""
        return self._lease.retry_count + 1

    @property
    def retries_left(self) -> int:
        """The number of further attempts that are possible if this attempt fails."""
        return max(0, self._lease.max_retries - self._lease.retry_count)

    @property
    def fence(self) -> int:
        """A number that grows each time a task of the queue starts. Use it to reject writes of an outdated worker:
        ``UPDATE … WHERE fence < %s``.
        """
        return self._lease.token

    @property
    def ready_at(self) -> float:
        """The moment since which the task was ready to start, as Unix time of the server; 0 outside of a worker."""
        return self._lease.ready_at

    @property
    def deadline(self) -> float | None:
        """The moment at which the task's time limit ends, by this machine's clock; None without a limit."""
        return None if self._timeout is None else self._started + self._timeout

    @property
    def cancelled(self) -> bool:
        """Whether the running task was canceled or given to another worker. If so, its outcome will be ignored."""
        if self._reports is not None and self._reports.lease_lost:
            return True
        return self._lease.key in self._services.revoked

    @property
    def batch(self) -> tuple[TaskContext, ...]:
        """In a batch task, the context of each item, in the items' order."""
        return self._batch

    @property
    def run_id(self) -> str:
        """The id of the pipeline run that the task belongs to; empty if it belongs to none."""
        return self._lease.run_id

    @property
    def payload_bytes(self) -> bytes:
        """The arguments as they were sent, as JSON bytes."""
        return self._lease.payload_bytes

    @property
    def priority(self) -> Priority:
        """The task's priority; NORMAL outside of a worker."""
        return self._lease.priority

    @property
    def lane(self) -> Lane:
        """The task's lane: ``"urgent"``, ``"normal"`` or ``"bulk"``; ``"normal"`` outside of a worker."""
        return self._lease.lane

    @property
    def args(self) -> list[Any]:
        """The positional arguments as they were sent: JSON values. For a bare payload, a list with the payload."""
        payload = self._lease.payload
        return list(payload["args"]) if self._lease.name or self._lease is _NO_LEASE else [payload]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments as they were sent: JSON values."""
        return dict(self._lease.payload["kwargs"]) if self._lease.name else {}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that middleware has sent with the task: texts by name."""
        found = self._lease.payload if self._lease.name else None
        for key in (METADATA_KEY, HEADERS_KEY):  # operators can edit payloads, so invalid parts count as missing
            found = found.get(key) if isinstance(found, dict) else None
        return (
            {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
        )

    @property
    def traceparent(self) -> str:
        """The trace of the task as a W3C Trace Context header; empty if there is none."""
        return self.trace.parent

    @property
    def trace(self) -> Trace:
        """The trace of the task; an empty trace if there is none."""
        return self._lease.trace

    def parent_results(self) -> dict[str, Any]:
        """Return the results of the tasks that this task depends on: by task id, in the order of the declaration.
        Blocks.

        Tasks that have not finished are left out; this task may run nevertheless, see ``on_dependency_failure``.
        """
        return self._services.parent_results(self._lease.task_id)

    def parent_result(self) -> Any:
        """Return the result of the only task that this task depends on. Blocks.

        Raises `LookupError` unless exactly one such task has finished.
        """
        results = self.parent_results()
        if len(results) != 1:
            raise LookupError(f"task {self.id!r} has {len(results)} parents with a result; use parent_results()")
        return next(iter(results.values()))

    @property
    def xcom(self) -> XCom:
        """Values shared with the other tasks of the pipeline run: ``push(key, value)``, ``pull(key)``. If the task
        belongs to no run, the values are shared with its own later attempts.

        Raises `RuntimeError` outside of a worker.
        """
        return self._services.xcom(self._lease.run_id or self._lease.task_id, self.user_id)

    def raise_if_cancelled(self) -> None:
        """End the task here if it was canceled, by raising `Discard`."""
        if self.cancelled:
            raise Discard("canceled while it ran")

    def progress(self, current: float, total: float, message: str = "") -> None:
        """Report the progress of the task, without blocking. The newest report is sent up to ten times a second.

        ``current`` and ``total`` are finite numbers of any unit; ``message`` is a text, empty by default, of which
        1,000 bytes are kept. Raises `TaskUsageError` if a value has another type.
        """
        report = check_progress(current, total, message)
        if self._lease is _NO_LEASE:
            return
        if self._reports is None:
            lease, send = self._lease, self._services.send_progress
            self._reports = Reports(lease.task_id, lambda *report: send(lease, *report))
        self._reports.put(report)

    def close_limit(self, key: str, until: float | timedelta | datetime) -> None:
        """Prevent the start of all tasks of a limit until a moment, on every worker. Tasks that are running go on.
        Blocks.

        Use this method after an answer such as HTTP 429, then raise `Retry` with the same delay. ``key`` is the key of
        one of this task's limits, as it is declared or with its names filled in. ``until`` is a number of seconds from
        now, a timedelta, or an aware datetime; a moment in the past has no effect. Raises `TaskUsageError` if the task
        has no such limit, `TaskValidationError` if ``until`` has another type, and `RedisConnectionError` if the server
        can't be reached.
        """
        self._services.close_limit(self._lease, key, until)


class RunningTask(TaskContext):
    """The context of a task that a worker runs, with attributes that only the worker uses."""

    __slots__ = ()

    @property
    def lease(self) -> Lease:
        """The worker's lease of the task."""
        return self._lease

    def lead(self, batch: tuple[RunningTask, ...]) -> None:
        """Represent all items of a batch. This task is the first item."""
        self._batch = batch

    @property
    def has_reports(self) -> bool:
        """Whether `flush` would send progress reports or log lines."""
        return self._reports is not None and self._reports.is_waiting

    def flush(self) -> None:
        """Send the last report. The worker calls this after the task has ended, before it sends the outcome. Blocks."""
        if self._reports is not None:
            self._reports.flush()


_NO_LEASE = cast("Lease", _NoLease())
_no_task = TaskContext(_NO_LEASE, cast("WorkerServices", _NoServices()), None)
running: ContextVar[TaskContext] = ContextVar("fairque_task", default=_no_task)


def current_task() -> TaskContext:
    """Return the task that runs in this thread or coroutine. Outside of a worker, return a task whose attributes are
    empty and whose methods do nothing.
    """
    return running.get()


class ScopedBlock(Generic[T]):
    """Holds a value during one ``with`` block. Can't be used as a decorator, because the block would end before a
    coroutine runs.
    """

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[tuple[T, TaskContext] | None], value: T) -> None:
        self._variable, self._value = variable, value
        self._token: Token[tuple[T, TaskContext] | None] | None = None

    def __enter__(self) -> None:
        if self._token is not None:
            raise RuntimeError("this block was entered before: make one for each `with`")
        self._token = self._variable.set((self._value, running.get()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None  # noqa: S101 - it was entered
        self._variable.reset(self._token)


class ScopedValue(Generic[T]):
    """The value that the innermost open block sets. Without a block, the value comes from the running task.

    A value applies only to the task in which it was set. So a task that runs inside of another task's block does not
    use the block's value. (In tests, tasks may run where they are enqueued.) Running a task takes no extra time for
    this.
    """

    def __init__(self, name: str, of_task: Callable[[TaskContext], T]) -> None:
        self._variable: ContextVar[tuple[T, TaskContext] | None] = ContextVar(name, default=None)
        self._of_task = of_task

    def get(self) -> T:
        task, held = running.get(), self._variable.get()
        return held[0] if held is not None and held[1] is task else self._of_task(task)

    def hold(self, value: T) -> ScopedBlock[T]:
        """Return a context manager that sets the value for its block."""
        return ScopedBlock(self._variable, value)


def _get_inherited_lane(task: TaskContext) -> Lane | None:
    """Return the lane that the running task passes on to tasks that it enqueues. The bulk lane is passed on (in a batch
    if all items are bulk), the urgent lane is not.
    """
    return "bulk" if task.lane == "bulk" and all(item.lane == "bulk" for item in task.batch) else None


current_lane: ScopedValue[Lane | None] = ScopedValue("fairque_lane", _get_inherited_lane)
"""The lane of enqueued tasks that name no lane themselves; None for no lane."""


def lane(name: Lane) -> AbstractContextManager[None]:
    """Return a context manager for a ``with`` block. Tasks that are enqueued in the block are in the lane ``name``,
    unless they name another lane.

    ``name`` is ``"urgent"``, ``"normal"`` or ``"bulk"``. The block applies to calls, pipelines and model events. In the
    lanes urgent and bulk the priorities of tasks are ignored. Tasks that a bulk task enqueues are in the bulk lane too,
    without a block; the urgent lane is not inherited. Use a plain ``with``, also in coroutines. Blocks can be nested;
    the innermost block applies. Raises `TaskValidationError` for another name.
    """
    return current_lane.hold(check_lane(name, "the lane"))


class UserSource(ABC):
    """Finds the id of a user when the id is first needed."""

    @abstractmethod
    def user_id(self) -> str | None: ...

    @abstractmethod
    async def auser_id(self) -> str | None: ...


def _get_running_user(task: TaskContext) -> str | None:
    """Return the user of the running task. For a batch, return a user only if all its items have the same user."""
    if not task.batch:
        return task.user_id or None
    users = {item.user_id for item in task.batch}
    return (users.pop() or None) if len(users) == 1 else None


_current_user: ScopedValue[str | UserSource | None] = ScopedValue("fairque_user", _get_running_user)


def as_user(user: object) -> AbstractContextManager[None]:
    """Return a context manager for a ``with`` block. Tasks that are enqueued in the block are for ``user``, unless they
    name another user.

    ``user`` is text, an integer key or a UUID; None for no user. Use a plain ``with``, also in coroutines. Blocks can
    be nested; the innermost block applies. Raises `TaskValidationError` if ``user`` is not an id.
    """
    return _current_user.hold(None if user is None else user_id(user, "the user"))


def as_source_user(source: UserSource) -> AbstractContextManager[None]:
    """Return the same context manager as `as_user`, for a user that ``source`` finds when the id is needed."""
    return _current_user.hold(source)


def current_user_id() -> str | None:
    """Return the current user's id: the user of `as_user`, of the running task, or of the request; None if there is
    none.

    Raises `TaskUsageError` in a coroutine if looking up the request's user would block; use `acurrent_user_id` there.
    """
    current = _current_user.get()
    return current if current is None or isinstance(current, str) else current.user_id()


async def acurrent_user_id() -> str | None:
    """Return the current user's id, as `current_user_id` does. Await this function in coroutines, where looking up the
    request's user must not block.
    """
    current = _current_user.get()
    return await current.auser_id() if isinstance(current, UserSource) else current


async def call_with_user(build: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Look up the current user, then call ``build``, which must not block."""
    if not isinstance(_current_user.get(), UserSource):
        return build(*args, **kwargs)
    with as_user(await acurrent_user_id()):
        return build(*args, **kwargs)
