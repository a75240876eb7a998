"""Tasks whose code this process doesn't have: during a rolling deploy another worker will.

They are put off, without using up their retries, for as long as a deploy may take; then they become dead letters.
When a task was first met is remembered per process: the server's record changes with each time it is put off, and
its age says nothing (it may have been delayed or queued for hours).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN_TASK_GRACE_SECONDS = 600.0
"""Seconds for which a task of an unknown name is put off."""
UNKNOWN_TASK_DELAY_SECONDS = 30.0
"""Seconds until it is offered again, perhaps to a worker that knows it."""
MAX_UNKNOWN_TASKS = 10_000
"""Most tasks remembered; when as many are known, others stay put off until there is room."""
MAX_UNKNOWN_NAMES = 100
"""Most names remembered, to report them."""
UNKNOWN_NAME_SECONDS = 3 * UNKNOWN_TASK_DELAY_SECONDS
"""Seconds without a task of a name after which this process no longer reports the name: another worker runs its tasks, or
nobody enqueues them."""


class UnknownTasks:
    """Since when each of them is known to this process. Thread-safe."""

    def __init__(
        self,
        *,
        grace: float = UNKNOWN_TASK_GRACE_SECONDS,
        delay: float = UNKNOWN_TASK_DELAY_SECONDS,
        memory: int = MAX_UNKNOWN_TASKS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.delay = delay
        self._grace = grace
        self._memory = memory
        self._clock = clock
        self._met: dict[str, float] = {}  # in the order of meeting: the oldest comes first
        self._names: dict[str, tuple[float, float]] = {}
        """When a warning about the name was logged, and when the last task of that name came."""
        self._lock = threading.Lock()

    def is_to_be_warned_of(self, name: str) -> bool:
        """Remember the name of a task that came. Whether to log a warning: once for each name and grace period."""
        now = self._clock()
        with self._lock:
            warned_at = self._names.get(name, (now - self._grace, now))[0]
            if name not in self._names and len(self._names) >= MAX_UNKNOWN_NAMES:
                return False
            is_due = now - warned_at >= self._grace
            self._names[name] = (now if is_due else warned_at, now)
            return is_due

    def names(self) -> list[str]:
        """Those of which tasks came lately, sorted."""
        if not self._names:
            return []
        now = self._clock()
        with self._lock:
            gone = [name for name, (warned_at, _) in self._names.items() if now - warned_at >= 2 * self._grace]
            for name in gone:
                del self._names[name]
            return sorted(name for name, (_, met_at) in self._names.items() if now - met_at < UNKNOWN_NAME_SECONDS)

    @property
    def grace(self) -> float:
        """Seconds for which a task is put off."""
        return self._grace

    def may_wait(self, task_id: str) -> bool:
        """Whether to put the task off once more; False ends its grace."""
        now = self._clock()
        with self._lock:
            met = self._met.get(task_id)
            if met is not None and now - met >= self._grace:
                del self._met[task_id]
                return False
            if met is None:
                self._forget_lost(now)
                if len(self._met) < self._memory:
                    self._met[task_id] = now
            return True

    def _forget_lost(self, now: float) -> None:
        """Those not seen again long after their grace: another worker has run them."""
        while self._met:
            oldest = next(iter(self._met))
            if now - self._met[oldest] < 2 * self._grace:
                return
            del self._met[oldest]
