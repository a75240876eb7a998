"""Gathers leases of batch tasks until a batch is full or has waited long enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
