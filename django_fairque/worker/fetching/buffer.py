"""The leases of one shard that wait for a slot of their worker, or for the rest of their batch."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from django_fairque.engine.model.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.model.lease import Lease


@dataclass
class _OpenBatch:
    leases: list[Lease]
    limit: int
    due: float


class BatchCollector:
    """Unfinished batches, one per task name.

    Args:
        batch_of: ``(size, wait)`` of a batch of the tasks of that name, None if each runs by itself.
    """

    def __init__(self, batch_of: Callable[[str], tuple[int, float] | None]) -> None:
        self._batch_of = batch_of
        self._batches: dict[str, _OpenBatch] = {}
        self._ready: list[list[Lease]] = []
        self.size = 0
        """Leases that are held back here."""

    def add(self, leases: Sequence[Lease], now: float) -> list[Lease]:
        """Keep those that run in batches, return the others."""
        return [lease for lease in leases if not self._keep_for_batch(lease, now)]

    def _keep_for_batch(self, lease: Lease, now: float) -> bool:
        known = self._batch_of(lease.name)
        if known is None:
            return False
        limit, wait = known
        batch = self._batches.setdefault(lease.name, _OpenBatch([], limit, now + wait))
        batch.leases.append(lease)
        self.size += 1
        if len(batch.leases) >= limit:
            self._close(lease.name)
        return True

    def take(self, now: float, *, all_of_them: bool = False) -> list[list[Lease]]:
        """The batches that are full or have waited long enough."""
        for name in [name for name, batch in self._batches.items() if all_of_them or batch.due <= now]:
            self._close(name)
        ready, self._ready = self._ready, []
        self.size -= sum(map(len, ready))
        return ready

    def take_all(self) -> list[Lease]:
        return [lease for batch in self.take(math.inf) for lease in batch]

    @property
    def due(self) -> float:
        """When `take` will have something."""
        return min((batch.due for batch in self._batches.values()), default=math.inf)

    @property
    def open_batches(self) -> int:
        """How many batches are not full yet."""
        return len(self._batches)

    def _close(self, name: str) -> None:
        self._ready.append(self._batches.pop(name).leases)


Work = Union["Lease", "list[Lease]"]
"""What a slot takes: a task, or a batch of tasks of one name."""


class LeaseBuffer:
    """Slots take from `works` from any thread, in single operations of the interpreter; all else is one thread's at a time.

    Args:
        batch_of: ``(size, wait)`` for a task's name if tasks of this name run in batches, else None.
    """

    def __init__(self, batch_of: Callable[[str], tuple[int, float] | None]) -> None:
        self.works: deque[Work] = deque()
        self.batches = BatchCollector(batch_of)
        """Those that are not full yet."""
        self._arrived = 0
        self._arrivals: deque[tuple[int, float]] = deque()
        """When leases came into `works`, and how many had come by then: those of a batch when it is full or has waited."""

    def add(self, leases: list[Lease], now: float) -> None:
        singles = self.batches.add(leases, now)
        self._record_arrival(len(singles), now)
        if self.works:
            self._put_newcomers_first(singles)
        else:
            self.works.extend(singles)

    def _put_newcomers_first(self, leases: list[Lease]) -> None:
        """A user that has nothing here yet goes before what lies here: this is no queue to stand in."""
        waiting = {work.user_id for work in self._snapshot() if not isinstance(work, list)}
        newcomers = [lease for lease in leases if lease.user_id not in waiting]
        if newcomers:
            self.works.extendleft(reversed(newcomers))
            leases = [lease for lease in leases if lease.user_id in waiting]
        self.works.extend(leases)

    def add_batches(self, now: float, *, all_of_them: bool) -> list[list[Lease]]:
        """Those that are full or have waited long enough."""
        if not self.batches.size:
            return []
        batches = self.batches.take(now, all_of_them=all_of_them)
        self._record_arrival(sum(map(len, batches)), now)
        self.works.extend(batches)
        return batches

    def _record_arrival(self, count: int, now: float) -> None:
        if count:
            self._arrived += count
            self._arrivals.append((self._arrived, now))

    def has_waited(self, seconds: float, now: float) -> bool:
        """Whether the oldest lease that no slot has taken arrived longer ago than ``seconds``."""
        if not self._arrivals or now - self._arrivals[0][1] <= seconds:
            return False
        taken = self._arrived - sum(len(work) if isinstance(work, list) else 1 for work in self._snapshot())
        while self._arrivals and self._arrivals[0][0] <= taken:
            self._arrivals.popleft()
        return bool(self._arrivals and self.works) and now - self._arrivals[0][1] > seconds

    def _snapshot(self) -> tuple[Work, ...]:
        while True:
            try:
                return tuple(self.works)
            except RuntimeError:  # noqa: PERF203 - a slot took from it meanwhile
                continue

    def give_back(self) -> list[Outcome]:
        """Of all that no slot takes before."""
        outcomes: list[Outcome] = []
        while True:
            try:
                work = self.works.pop()
            except IndexError:
                return outcomes
            outcomes += [Outcome.release(lease) for lease in (work if isinstance(work, list) else [work])]

    def give_back_batches(self) -> list[Outcome]:
        """Of those that are not full yet."""
        return [Outcome.release(lease) for lease in self.batches.take_all()] if self.batches.size else []
