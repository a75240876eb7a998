"""Progress reports: the newest of each task is sent by a thread of its own, at most ten times a second.

So reporting never blocks a task or an event loop, and is the same for both. The last report of a task is always
sent, before its outcome. Errors are logged: a report is not worth a task.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import StaleLeaseError, short

from .errors import TaskUsageError

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 0.1
"""Least seconds between two reports of one task."""

logger = logging.getLogger("django_fairque.tasks")


class Reports:
    """The reports of one running task."""

    def __init__(self, task_id: str, send: Callable[[float, float, str], object]) -> None:
        self._task_id = task_id
        self._send = send
        self._newest: tuple[float, float, str] | None = None
        self._sending = threading.Lock()  # one at a time, or an older report could overtake a newer one
        self.due = -math.inf
        self.lease_lost = False
        """The server refused a report: the task is somebody else's now."""

    def put(self, current: float, total: float, message: str = "") -> None:
        self._newest = (
            check_progress_number(current, "current"),
            check_progress_number(total, "total"),
            check_progress_message(message),
        )
        _sender.add(self)

    @property
    def is_waiting(self) -> bool:
        """Whether there is a report that `flush` would send or wait for."""
        return self._newest is not None or self._sending.locked()

    def flush(self) -> None:
        """Send the newest report if it was not sent. Blocks."""
        with self._sending:
            newest, self._newest = self._newest, None
            if newest is None:
                return
            self.due = time.monotonic() + INTERVAL
            try:
                self._send(*newest)
            except StaleLeaseError:
                self.lease_lost = True
            except Exception:
                logger.warning("the progress of task %s could not be recorded", self._task_id, exc_info=True)


class _Sender:
    """The thread; it starts with the first report of the process."""

    def __init__(self) -> None:
        self._waiting: set[Reports] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, reports: Reports) -> None:
        with self._changed:
            if reports in self._waiting:
                return
            self._waiting.add(reports)
            if self._thread is None or not self._thread.is_alive():  # a forked child has no threads
                self._thread = threading.Thread(target=self._run, name="fairque-progress", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            for reports in self._take():
                reports.flush()

    def _take(self) -> list[Reports]:
        """Wait until at least one is due, and take those that are."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [reports for reports in self._waiting if reports.due <= now]
                if due:
                    self._waiting.difference_update(due)
                    return due
                soonest = min((reports.due for reports in self._waiting), default=None)
                self._changed.wait(None if soonest is None else soonest - now)


_sender = _Sender()


def check_progress_number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TaskUsageError(f"progress: {what} must be a finite number, got {short(value)}")
    return value


def check_progress_message(value: object) -> str:
    if not isinstance(value, str):
        raise TaskUsageError(f"progress: the message must be text, got {short(value)}")
    return value[:1000]
