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

GRACE = 600.0
"""Seconds for which a task of an unknown name is put off."""
DELAY = 30.0
"""Seconds until it is offered again, perhaps to a worker that knows it."""
MEMORY = 10_000
"""Most tasks remembered; when as many are known, others stay put off until there is room."""


class UnknownTasks:
    """Since when each of them is known to this process. Thread-safe."""

    def __init__(
        self,
        *,
        grace: float = GRACE,
        delay: float = DELAY,
        memory: int = MEMORY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.delay = delay
        self._grace = grace
        self._memory = memory
        self._clock = clock
        self._met: dict[str, float] = {}  # in the order of meeting: the oldest comes first
        self._lock = threading.Lock()

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
