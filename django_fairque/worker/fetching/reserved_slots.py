"""Reserved slots: slots of a process that tasks of lower lanes never take (``--reserve urgent=1 --reserve normal=2``).

Any slot can run any task. But the process holds no more tasks of the lower lanes than may run at once, so these tasks
are not fetched ahead. With 8 slots and the options above, the process holds at most 5 bulk tasks, and at most 7 bulk
and normal tasks together.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from django_fairque.engine.model.lanes import LANES, LaneLimits

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.lease import Lease


class ReservedSlots:
    """Counts the tasks of lower lanes that a process holds or has requested. All planners of the process use one
    object, from any thread.

    A batch counts as one task, and is recorded under the token of its first lease.
    """

    def __init__(self, concurrency: int, reserve: Mapping[Lane, int]) -> None:
        below_urgent = concurrency - reserve.get("urgent", 0)
        self._most = LaneLimits(below_urgent, below_urgent - reserve.get("normal", 0))
        self._requested = LaneLimits(0, 0)
        self._held: dict[tuple[int, int], Lane] = {}
        """The lane of each held task, by the number of its planner and its token."""
        self._lock = threading.Lock()

    def _limits(self) -> LaneLimits:
        lanes = list(self._held.values())
        bulk = self._most.bulk - lanes.count("bulk") - self._requested.bulk
        below_urgent = self._most.below_urgent - len(lanes) - self._requested.below_urgent
        return LaneLimits(max(0, below_urgent), max(0, min(below_urgent, bulk)))

    @property
    def lowest_lane(self) -> Lane:
        """Return the lowest lane from which a task could be fetched now."""
        with self._lock:
            below_urgent, bulk = self._limits()
        return "bulk" if bulk else "normal" if below_urgent else "urgent"

    def request(self, turns: int) -> LaneLimits:
        """Return the limits per lane for a fetch of up to ``turns`` turns. Until `end_request`, these limits count as
        tasks that the process holds.
        """
        with self._lock:
            limits = LaneLimits(*(min(turns, most) for most in self._limits()))
            self._requested = LaneLimits(*map(sum, zip(self._requested, limits, strict=True)))
            return limits

    def end_request(self, limits: LaneLimits, planner: int = 0, leases: Iterable[Lease] = ()) -> None:
        """Replace the limits of a fetch by the ``leases`` that it returned. Do not pass leases that joined an existing
        batch.
        """
        with self._lock:
            self._requested = LaneLimits(*(a - b for a, b in zip(self._requested, limits, strict=True)))
            self._held.update(((planner, lease.token), lease.lane) for lease in leases if lease.lane != "urgent")

    def end(self, planner: int, tokens: Collection[int]) -> None:
        """Record that leases have ended, so that their slots are free."""
        with self._lock:
            for token in tokens:
                self._held.pop((planner, token), None)


def is_lower(lane: Lane, other: Lane) -> bool:
    """Return whether ``lane`` is a lower lane than ``other``."""
    return LANES.index(lane) > LANES.index(other)
