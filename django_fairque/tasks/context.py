"""What a running task can know of itself: `current_task`."""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.trace_context import NONE

from . import progress
from .control import Discard

if TYPE_CHECKING:
    from django_fairque.engine.dependencies.xcom import XCom
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.trace_context import Trace

    from .services import Services


class TaskContext:
    """The task that runs here. Outside of a worker (a plain call) there is none, and all of this is inert.

    Moments are seconds since the epoch.
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """The task's id, or empty."""
        return ""

    @property
    def name(self) -> str:
        """The name by which the task is known, or empty."""
        return ""

    @property
    def queue(self) -> str:
        """The name of its queue, or empty."""
        return ""

    @property
    def user_id(self) -> str:
        """For whom it runs, or empty."""
        return ""

    @property
    def attempt(self) -> int:
        """1 for the first, one more after each failure (not after `Retry`)."""
        return 1

    @property
    def retries_left(self) -> int:
        """How often it will be tried again if this attempt fails."""
        return 0

    @property
    def fence(self) -> int:
        """Grows with every delivery in the queue: ``UPDATE … WHERE fence < %s`` keeps a stale worker out."""
        return 0

    @property
    def deadline(self) -> float | None:
        """When its time limit ends, by this machine's clock; None without a limit."""
        return None

    @property
    def cancelled(self) -> bool:
        """Whether it was canceled, or given to another worker, while it runs: its outcome will not count."""
        return False

    @property
    def batch(self) -> tuple[TaskContext, ...]:
        """In a batch task, the context of each item, in the items' order."""
        return ()

    @property
    def run_id(self) -> str:
        """The id of the pipeline's run that it belongs to, or empty."""
        return ""

    @property
    def payload_bytes(self) -> bytes:
        """The arguments as they were sent, JSON."""
        return b""

    @property
    def traceparent(self) -> str:
        """The trace that it belongs to, as W3C Trace Context writes it, or empty."""
        return self.trace.parent

    @property
    def trace(self) -> Trace:
        """The trace that it belongs to, or none."""
        return NONE

    def parent_results(self) -> dict[str, Any]:
        """What the tasks that it depends on returned: by id, in the order of its declaration. Blocks.

        Without those that have not finished (it may run anyhow, see ``on_dependency_failure``).
        """
        return {}

    def parent_result(self) -> Any:
        """What the one task that it depends on returned; `LookupError` if that is not exactly one. Blocks."""
        results = self.parent_results()
        if len(results) != 1:
            raise LookupError(f"task {self.id!r} has {len(results)} parents with a result; use parent_results()")
        return next(iter(results.values()))

    @property
    def xcom(self) -> XCom:
        """Values shared with the other tasks of its run (or for itself alone): ``push(key, value)``, ``pull(key)``."""
        raise RuntimeError("there is no xcom outside of a worker; use get_queue().xcom(namespace)")

    def raise_if_cancelled(self) -> None:
        """End the task here (with `Discard`) if it was canceled."""
        if self.cancelled:
            raise Discard("canceled while it ran")

    def progress(self, current: float, total: float, message: str = "") -> None:
        """Report how far the task is. Cheap and never blocking: the newest report is sent ten times a second."""
        progress.check_progress_number(current, "current")
        progress.check_progress_number(total, "total")
        progress.check_progress_message(message)


class RunningTask(TaskContext):
    """The context of a task that a worker runs."""

    __slots__ = ("_batch", "_lease", "_reports", "_services", "_started", "_timeout")

    def __init__(self, lease: Lease, services: Services, timeout: float | None) -> None:
        self._lease = lease
        self._services = services
        self._timeout = timeout
        self._batch: tuple[RunningTask, ...] = ()
        self._started = time.time()
        self._reports: progress.Reports | None = None

    @property
    def lease(self) -> Lease:
        """What the worker holds of it."""
        return self._lease

    @property
    def id(self) -> str:
        return self._lease.task_id

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def queue(self) -> str:
        return self._services.queue

    @property
    def user_id(self) -> str:
        return self._lease.user_id

    @property
    def attempt(self) -> int:
        return self._lease.retry_count + 1

    @property
    def retries_left(self) -> int:
        return max(0, self._lease.max_retries - self._lease.retry_count)

    @property
    def fence(self) -> int:
        return self._lease.token

    @property
    def deadline(self) -> float | None:
        return None if self._timeout is None else self._started + self._timeout

    @property
    def cancelled(self) -> bool:
        if self._reports is not None and self._reports.lease_lost:
            return True
        return self._lease.key in self._services.revoked

    @property
    def batch(self) -> tuple[TaskContext, ...]:
        return self._batch

    @property
    def run_id(self) -> str:
        return self._lease.run_id

    @property
    def payload_bytes(self) -> bytes:
        return self._lease.payload_bytes

    @property
    def trace(self) -> Trace:
        return self._lease.trace

    def parent_results(self) -> dict[str, Any]:
        return self._services.parent_results(self._lease.task_id)

    @property
    def xcom(self) -> XCom:
        return self._services.xcom(self._lease.run_id or self._lease.task_id)

    def lead(self, batch: tuple[RunningTask, ...]) -> None:
        """Stand for all items of a batch; it is the first of them itself."""
        self._batch = batch

    def progress(self, current: float, total: float, message: str = "") -> None:
        if self._reports is None:
            lease, send = self._lease, self._services.send_progress
            self._reports = progress.Reports(lease.task_id, lambda *report: send(lease, *report))
        self._reports.put(current, total, message)

    @property
    def has_reports(self) -> bool:
        """Whether `flush` has something to do."""
        return self._reports is not None and self._reports.is_waiting

    def flush(self) -> None:
        """Send the last report; called when the task has ended, before its outcome is. Blocks."""
        if self._reports is not None:
            self._reports.flush()


running: ContextVar[TaskContext] = ContextVar("fairque_task", default=TaskContext())  # noqa: B039 - it has no state


def current_task() -> TaskContext:
    """The task that runs in this thread or coroutine; an inert one outside of a worker."""
    return running.get()
