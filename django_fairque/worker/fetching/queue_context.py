"""One shard of a queue, as the slots of a worker and the threads that call the server share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.lease import LeaseKey
from django_fairque.engine.model.outcome import Outcome
from django_fairque.worker.common.wakeup import Wakeup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.execution import Services
    from django_fairque.worker.fetching.fetch_planner import FetchPlanner

MAX_REVOKED_LEASES = 10_000


class RevokedLeases(set[LeaseKey]):
    """Leases of one shard that were revoked. One thread adds to them, any thread may read."""

    def add_leases(self, leases: Iterable[LeaseKey]) -> None:
        if len(self) > MAX_REVOKED_LEASES:  # leases of runs that had ended before stay here unused
            self.clear()
        self.update(leases)

    def settle(self, outcome: Outcome) -> Outcome:
        """Return the outcome to report for a run that has ended. A revoked run only releases its lease, which is no longer
        ours."""
        if not self or outcome.lease.key not in self:
            return outcome
        self.discard(outcome.lease.key)
        return Outcome.release(outcome.lease)


@dataclass(frozen=True, eq=False, slots=True)
class QueueContext:
    """One shard of a queue, for the slots and for the threads that call the server."""

    queue: FairQueue
    planner: FetchPlanner
    services: Services
    revoked: RevokedLeases
    wakeup: Wakeup = field(default_factory=Wakeup)
    """Wakes the thread that fetches tasks and reports outcomes."""
    second_wakeup: Wakeup = field(default_factory=Wakeup)
    """Wakes the thread that makes a second call while the first thread waits for the answer to its own."""
