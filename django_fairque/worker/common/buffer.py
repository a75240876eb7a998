"""The leases of one shard that wait for a slot of their worker, or for the rest of their batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Union

from django_fairque.engine.model.outcome import Outcome

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

Work = Union["Lease", "list[Lease]"]
"""A unit of work for a slot: a task, or a batch of tasks with the same name."""


@dataclass
class _Batch:
    leases: list[Lease]
    due: float
    """Time when the batch begins, even if it has not reached its maximum size."""


def is_urgent(work: Work) -> bool:
    return (work[0] if isinstance(work, list) else work).lane == "urgent"


class LeaseBuffer:
    """Holds the leases that wait for a slot. Slots take work from `works` in any thread, because a single operation of
    the interpreter does this. All other attributes and methods may be used by only one thread at a time.

    Args:
        batch_of: ``(size, wait)`` for a task's name if tasks of this name run in batches, else None.
    """

    def __init__(self, batch_of: Callable[[str], tuple[int, float] | None]) -> None:
        self.works: deque[Work] = deque()
        self.held_back = 0
        """Leases that wait for the rest of their batch."""
        self._batch_of = batch_of
        self.open_batches: dict[tuple[str, str], _Batch] = {}
        """Batches that have not reached their maximum size, by the name and the lane of their tasks."""
        self._full: list[_Batch] = []
        self._arrived = 0
        self._arrivals: deque[tuple[int, float]] = deque()
        """Times at which leases were added to `works`, each with the total number of leases added until then. Leases of
        a batch are added when the batch is full or has waited long enough."""

    def add(self, leases: list[Lease], now: float) -> None:
        singles = [lease for lease in leases if not self._keep_for_batch(lease, now)]
        self._record_arrival(len(singles), now)
        others = [lease for lease in singles if lease.lane != "normal"]
        if others:
            self._put_first([lease for lease in others if is_urgent(lease)])
            others = [lease for lease in others if not is_urgent(lease)]
            singles = [lease for lease in singles if lease.lane == "normal"]
        if self.works:  # leases of users without a lease in the buffer go first, so that newcomers do not wait here
            waiting = {work.user_id for work in self.snapshot() if not isinstance(work, list)}
            self._put_first([lease for lease in singles if lease.user_id not in waiting])
            singles = [lease for lease in singles if lease.user_id in waiting]
        self.works.extend(singles + others)

    def _put_first(self, works: Sequence[Work]) -> None:
        """Put work behind the urgent work and before all other work. If slots take urgent work meanwhile, the new work
        lands a few positions later.
        """
        place = sum(1 for _ in takewhile(is_urgent, self.snapshot()))
        if not place:
            self.works.extendleft(reversed(works))
            return
        for work in reversed(works):
            self.works.insert(place, work)

    def _keep_for_batch(self, lease: Lease, now: float) -> bool:
        known = self._batch_of(lease.name)
        if known is None:
            return False
        limit, wait = known
        key = lease.name, lease.lane
        batch = self.open_batches.setdefault(key, _Batch([], now + wait))
        batch.leases.append(lease)
        self.held_back += 1
        if len(batch.leases) >= limit:
            self._full.append(self.open_batches.pop(key))
        return True

    def add_batches(self, now: float, *, all_of_them: bool) -> list[list[Lease]]:
        """Move the batches that are full or have waited long enough to `works`, and return them."""
        if not self.held_back:
            return []
        batches = self._take_batches(math.inf if all_of_them else now)
        self._record_arrival(sum(map(len, batches)), now)
        self._put_first([batch for batch in batches if is_urgent(batch)])
        self.works.extend(batch for batch in batches if not is_urgent(batch))
        return batches

    def _take_batches(self, due: float) -> list[list[Lease]]:
        """Remove and return the full batches, and the other batches that begin by ``due``."""
        for key in [key for key, batch in self.open_batches.items() if batch.due <= due]:
            self._full.append(self.open_batches.pop(key))
        taken, self._full = [batch.leases for batch in self._full], []
        self.held_back -= sum(map(len, taken))
        return taken

    def _record_arrival(self, count: int, now: float) -> None:
        if count:
            self._arrived += count
            self._arrivals.append((self._arrived, now))

    def has_waited(self, seconds: float, now: float) -> bool:
        """Return whether the oldest lease in `works` has waited longer than ``seconds`` for a slot."""
        if not self._arrivals or now - self._arrivals[0][1] <= seconds:
            return False
        taken = self._arrived - sum(len(work) if isinstance(work, list) else 1 for work in self.snapshot())
        while self._arrivals and self._arrivals[0][0] <= taken:
            self._arrivals.popleft()
        return bool(self._arrivals and self.works) and now - self._arrivals[0][1] > seconds

    def snapshot(self) -> tuple[Work, ...]:
        """Return the work that is waiting now. Can be called from any thread."""
        while True:
            try:
                return tuple(self.works)
            except RuntimeError:  # noqa: PERF203 - a slot took from it meanwhile
                continue

    def give_back(self) -> list[Outcome]:
        """Return an outcome that releases each lease in `works`, except leases that a slot takes meanwhile."""
        outcomes: list[Outcome] = []
        while True:
            try:
                work = self.works.pop()
            except IndexError:
                return outcomes
            outcomes += [Outcome.release(lease) for lease in (work if isinstance(work, list) else [work])]

    def give_back_batches(self) -> list[Outcome]:
        """Return an outcome for each lease of a batch that is not full. The outcome releases the lease."""
        return [Outcome.release(lease) for batch in self._take_batches(math.inf) for lease in batch]
