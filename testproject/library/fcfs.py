"""What would have happened first come, first served. Knows no Django."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Run:
    """One task as it was really run; moments in seconds since the epoch."""

    user: str
    arrived: float
    started: float
    ended: float

    @property
    def waited(self) -> float:
        return max(0.0, self.started - self.arrived)

    @property
    def took(self) -> float:
        return max(0.0, self.ended - self.started)


def replay(runs: Iterable[Run], slots: int, opened: float = 0.0) -> list[tuple[Run, float]]:
    """Send the same tasks through ``slots`` that serve them in the order of their arrival.

    Each takes as long as it really did, and nothing is lost between two of them. So the waiting times are a lower
    bound.

    Parameters
    ----------
    opened
        When the slots begin to work.

    Returns
    -------
    Each task with the seconds it would have waited, in the order of arrival. Tasks that arrived at the same
    moment keep the order in which they were given.
    """
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    free_at = [opened] * slots
    served = []
    for run in sorted(runs, key=lambda run: run.arrived):
        start = max(run.arrived, free_at[0])
        heapq.heapreplace(free_at, start + run.took)
        served.append((run, start - run.arrived))
    return served
