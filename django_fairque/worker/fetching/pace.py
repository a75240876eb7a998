"""How fast tasks pass through a worker's part in a queue, and how many of them it should have in hand beyond its slots."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.model.outcome import Outcome

PREFETCH_SECONDS = 0.05
"""Seconds of work that lie ahead of the slots at most."""
MAX_PREFETCHED_LEASES = 240
"""Leases that do at most. A call settles and fetches about a third as many, which takes the server 7 ms."""
RATE_WINDOW_SECONDS = 0.1
"""Seconds of work over which the rate is taken: one call's tasks end in a moment, the next one's after a wait for the
server, and what is kept ahead must not follow that up and down."""
RUN_TIME_SAMPLES = 30
"""Tasks over which the mean of their run times is taken."""


class Pace:
    """Learns from what has ended.

    Attributes:
        ahead: leases to have in hand beyond those that run.
        low: how many of those are left when more are fetched.
        mean_run: seconds that a task runs.
    """

    def __init__(self, slots: int) -> None:
        self.prefetch = self.low_mark = 0
        self.mean_run = 0.0
        self._slots = slots
        self._round_trip = 0.0
        self._tasks = 0.0
        self._seconds = 0.0

    def record_ended(self, outcomes: Sequence[Outcome], seconds: float, companions: int = 0) -> None:
        """These tasks ended within so many seconds, in which there was always something to run. A batch counts as one task:
        ``companions`` of these are those that ran in one call with another one."""
        count = len(outcomes) - companions
        if not count:
            return
        if seconds > 0:
            kept = math.exp(-seconds / RATE_WINDOW_SECONDS)
            self._tasks = kept * self._tasks + count
            self._seconds = kept * self._seconds + seconds
        run = sum(outcome.took or 0.0 for outcome in outcomes) / count
        self.mean_run += min(1.0, count / RUN_TIME_SAMPLES) * (run - self.mean_run)
        # What is left of it at a call must last for the call, all slots working; more would only make newcomers wait.
        needed = 2 * self._slots * self._round_trip / max(self.mean_run, 1e-6)
        rate = self._tasks / self._seconds if self._seconds else 0.0
        self.prefetch = int(min(MAX_PREFETCHED_LEASES, rate * PREFETCH_SECONDS, needed))
        self.low_mark = self.prefetch * 3 // 4

    def record_round_trip(self, seconds: float) -> None:
        """A call that brought leases took so long."""
        self._round_trip += 0.2 * (seconds - self._round_trip)

    def reset(self) -> None:
        """What lay ahead was not reached in time: nothing is fetched ahead before more has ended."""
        self.prefetch = self.low_mark = 0
        self._tasks = self._seconds = 0.0
