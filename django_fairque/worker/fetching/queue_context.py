"""The state of one shard of a queue that the slots of a worker and the threads that call the server share."""

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
    """The revoked leases of one shard. One thread adds leases; any thread may read them."""

    def add_leases(self, leases: Iterable[LeaseKey]) -> None:
        if len(self) > MAX_REVOKED_LEASES:  # leases whose tasks ended before the revocation stay here unused
            self.clear()
        self.update(leases)

    def settle(self, outcome: Outcome) -> Outcome:
        """Return the outcome to report for a task that has ended. If its lease was revoked, its result is dropped, and
        the outcome only gives the task back.
        """
        if not self or outcome.lease.key not in self:
            return outcome
        self.discard(outcome.lease.key)
        return Outcome.release(outcome.lease)


@dataclass(frozen=True, eq=False, slots=True)
class QueueContext:
    """The state of one shard of a queue, used by the slots and by the threads that call the server."""

    queue: FairQueue
    planner: FetchPlanner
    services: Services
    revoked: RevokedLeases
    wakeup: Wakeup = field(default_factory=Wakeup)
    """Wakes the thread that fetches tasks and reports outcomes."""
    second_wakeup: Wakeup = field(default_factory=Wakeup)
    """Wakes the thread that makes a second call while the first thread waits for the answer to its own."""
