"""The pace at which tasks end. From this pace follow the number of leases to fetch ahead and the number of outcomes to
report in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.model.outcome import Outcome

PREFETCH_SECONDS = 0.05
"""Maximum seconds of work that are fetched ahead."""
MAX_PREFETCHED_LEASES = 240
"""Maximum number of leases that are fetched ahead. A call fetches about a third of this (`Pace.call_size`)."""
MAX_OUTCOMES_PER_CALL = 300
"""Maximum number of outcomes that one call reports."""
SECOND_CALL_OUTCOMES = 60
"""Minimum number of waiting outcomes for which a second call is made while another call is in progress."""
RATE_WINDOW_SECONDS = 0.1
"""Seconds of work over which the rate of ended tasks is measured. The tasks of one call end together, and the tasks
of the next call only after a reply of the server; the number of leases fetched ahead must not follow these ups and
downs."""
RUN_TIME_SAMPLES = 30
"""Number of tasks over which the mean run time is calculated."""


class Pace:
    """Calculates from the tasks that have ended how many leases to fetch ahead.

    Attributes:
        prefetch: number of leases to hold in addition to the leases of running tasks.
        low_mark: when no more than this number of waiting leases is left, further leases are fetched.
        mean_run: mean seconds that a task runs.
    """

    def __init__(self, slots: int) -> None:
        self.prefetch = self.low_mark = 0
        self.mean_run = 0.0
        self._slots = slots
        self._round_trip = 0.0
        self._tasks = 0.0
        self._seconds = 0.0

    def record_ended(self, outcomes: Sequence[Outcome], seconds: float, companions: int = 0) -> None:
        """Record tasks that ended within ``seconds`` during which the slots always had work. A batch counts as one
        task: ``companions`` is the number of tasks in batches without the first task of each.
        """
        count = len(outcomes) - companions
        if not count:
            return
        if seconds > 0:
            kept = math.exp(-seconds / RATE_WINDOW_SECONDS)
            self._tasks = kept * self._tasks + count
            self._seconds = kept * self._seconds + seconds
        run = sum(outcome.took or 0.0 for outcome in outcomes) / count
        self.mean_run += min(1.0, count / RUN_TIME_SAMPLES) * (run - self.mean_run)
        # A call is made when a quarter of the buffer has been used. The remaining leases must keep all slots busy until
        # the call is answered. More tasks than the average may end in that time, but rarely more than the average plus
        # twice its square root. If several tasks end in that time, a larger buffer means fewer calls, so the calling
        # thread interrupts the slots less often. A larger buffer delays new users by about two round trips at most.
        # With longer tasks, the delay would be as long as one task.
        ending = self._slots * self._round_trip / max(self.mean_run, 1e-6)
        needed = (3 if ending >= 1 else 2) * (ending + math.sqrt(ending))
        rate = self._tasks / self._seconds if self._seconds else 0.0
        self.prefetch = int(min(MAX_PREFETCHED_LEASES, rate * PREFETCH_SECONDS, needed))
        self.low_mark = self.prefetch * 3 // 4

    @property
    def call_size(self) -> int:
        """Return the maximum number of outcomes to report in one call.

        If more tasks are fetched ahead than run at the same time, the maximum is a third of all these tasks, but at
        least `SECOND_CALL_OUTCOMES`. So the slots have the last third to run while the server executes two calls, one
        after the other. If one call reported all outcomes, the slots would have no tasks until the call is answered.
        """
        if self.prefetch <= self._slots:
            return MAX_OUTCOMES_PER_CALL
        return min(MAX_OUTCOMES_PER_CALL, max(SECOND_CALL_OUTCOMES, (self._slots + self.prefetch) // 3))

    def record_round_trip(self, seconds: float) -> None:
        """Record how many seconds a call took that returned leases."""
        self._round_trip += 0.2 * (seconds - self._round_trip)

    def reset(self) -> None:
        """Fetch nothing ahead until more tasks have ended, because leases that were fetched ahead did not start in
        time.
        """
        self.prefetch = self.low_mark = 0
        self._tasks = self._seconds = 0.0
