"""The pace at which tasks end: how many leases to fetch ahead, and how many outcomes to report in a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.model.outcome import Outcome

PREFETCH_SECONDS = 0.05
"""Seconds of work that lie ahead of the slots at most."""
MAX_PREFETCHED_LEASES = 240
"""Leases that do at most. A call settles and fetches about a third as many (`Pace.call_size`)."""
MAX_OUTCOMES_PER_CALL = 300
"""The most outcomes that one call reports."""
SECOND_CALL_OUTCOMES = 60
"""Outcomes for which a second call is made."""
RATE_WINDOW_SECONDS = 0.1
"""Seconds of work over which the rate is taken. One call's tasks end at once, and the next call's tasks only after a wait for the
server; the number of leases fetched ahead must not follow these ups and downs."""
RUN_TIME_SAMPLES = 30
"""Number of tasks over which the mean run time is taken."""


class Pace:
    """Calculates from the tasks that have ended how many leases to fetch ahead.

    Attributes:
        prefetch: number of leases to hold in addition to the running ones.
        low_mark: number of these leases at which more are fetched.
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
        """Record tasks that ended within ``seconds``, in which there was always a task to run. A batch counts as one task:
        ``companions`` is the number of tasks that ran in one call with another one."""
        count = len(outcomes) - companions
        if not count:
            return
        if seconds > 0:
            kept = math.exp(-seconds / RATE_WINDOW_SECONDS)
            self._tasks = kept * self._tasks + count
            self._seconds = kept * self._seconds + seconds
        run = sum(outcome.took or 0.0 for outcome in outcomes) / count
        self.mean_run += min(1.0, count / RUN_TIME_SAMPLES) * (run - self.mean_run)
        # A call is made when a quarter of the buffer has been used. The rest must last until the call is answered, with all slots
        # working. More tasks than the average may end in that time: more by twice the square root is rare. If several tasks end
        # in that time, a larger buffer means fewer calls, so the calling thread takes the interpreter from the slots less often.
        # A larger buffer delays newcomers by about two round trips at most. With longer tasks, the delay would be that of one
        # task.
        ending = self._slots * self._round_trip / max(self.mean_run, 1e-6)
        needed = (3 if ending >= 1 else 2) * (ending + math.sqrt(ending))
        rate = self._tasks / self._seconds if self._seconds else 0.0
        self.prefetch = int(min(MAX_PREFETCHED_LEASES, rate * PREFETCH_SECONDS, needed))
        self.low_mark = self.prefetch * 3 // 4

    @property
    def call_size(self) -> int:
        """The most outcomes for one call.

        If more tasks are fetched ahead than run at the same time, this is a third of them all, but at least
        `SECOND_CALL_OUTCOMES`. So the slots have a third to run while the server works on two calls, one after the other. If
        one call reported all of them, the slots would have nothing to run until it is answered.
        """
        if self.prefetch <= self._slots:
            return MAX_OUTCOMES_PER_CALL
        return min(MAX_OUTCOMES_PER_CALL, max(SECOND_CALL_OUTCOMES, (self._slots + self.prefetch) // 3))

    def record_round_trip(self, seconds: float) -> None:
        """Record the seconds of a call that brought leases."""
        self._round_trip += 0.2 * (seconds - self._round_trip)

    def reset(self) -> None:
        """Fetch nothing ahead until more tasks have ended: leases that were fetched ahead did not start in time."""
        self.prefetch = self.low_mark = 0
        self._tasks = self._seconds = 0.0
