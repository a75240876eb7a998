"""The leases that a worker hears of as lost, because their tasks were canceled or their server came back empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.lease import LeaseKey
from django_fairque.engine.model.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_REVOKED_LEASES = 10_000


class RevokedLeases(set[LeaseKey]):
    """Those of one lane. One thread adds to them, any may ask."""

    def add_leases(self, leases: Iterable[LeaseKey]) -> None:
        if len(self) > MAX_REVOKED_LEASES:  # of runs that had ended before: nobody asks for them any more
            self.clear()
        self.update(leases)

    def settle(self, outcome: Outcome) -> Outcome:
        """What to report of a run that has ended: of one that was revoked nothing, as its lease is not ours any more."""
        if not self or outcome.lease.key not in self:
            return outcome
        self.discard(outcome.lease.key)
        return Outcome.release(outcome.lease)
