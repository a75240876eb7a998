"""The server is gone: say so once, come back gently, say when it is over."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.options import WorkerOptions

logger = logging.getLogger("django_fairque.worker")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""So that all are at work again well within two seconds of the server's return."""


class Outage:
    """Shared by everything in a process that talks to the server, or to a shard's node. Thread-safe.

    Args:
        patience: seconds for which it is waited for as long as it has never answered.
    """

    def __init__(self, where: str = "", patience: float = math.inf) -> None:
        self._where = where
        self._patience = patience
        self.has_answered = False
        self.error = ""
        """What the last call that failed met."""
        self._lock = threading.Lock()
        self._since: float | None = None
        self._attempts = 0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    @property
    def is_given_up(self) -> bool:
        """Whether it has never answered, for longer than it is waited for."""
        since = self._since
        return not self.has_answered and since is not None and time.monotonic() - since >= self._patience

    def met(self, error: Exception) -> float:
        """A call failed; returns for how long (seconds) to leave the server alone."""
        with self._lock:
            self.error = str(error)
            if self._since is None:
                self._since = time.monotonic()
                self._attempts = 0
                if self.has_answered or self._patience == math.inf:
                    logger.error("%s%s; trying again until it works", self._where, error)
                else:
                    logger.error("%s%s; trying again for %g s", self._where, error, self._patience)
            self._attempts += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempts - 1, 10))
            return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads attempts, hides nothing

    def over(self) -> None:
        """A call succeeded."""
        self.has_answered = True
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logger.info("%sthe server answers again, after %.1f s", self._where, time.monotonic() - since)


def patience_of(options: WorkerOptions, queues: Sequence[FairQueue]) -> float:
    """For how long (seconds) a server is waited for that has never answered: a burst is to end, all else is to work."""
    return max(queue.config.request_timeout for queue in queues) if options.burst else math.inf


class Outages:
    """One for each shard of queues that have several, as one may be away while the others are not; one for all else.

    Args:
        places: the queues, or their shards, by lane.
        patience: as of each `Outage`.
    """

    def __init__(self, places: Sequence[FairQueue], patience: float = math.inf) -> None:
        common = Outage("", patience)
        self._places = list(places)
        self._each = {
            place.label: Outage(f"queue {place.label}: ", patience) if place.config.shards > 1 else common
            for place in places
        }

    def of(self, label: str) -> Outage:
        """By the label of a place."""
        return self._each[label]

    @property
    def is_on(self) -> bool:
        """Whether nothing answers."""
        return all(each.is_on for each in self._each.values())

    @property
    def given_up(self) -> str:
        """Why nothing is waited for any more: none has ever answered in the time given for that. Empty while some is."""
        each = list(self._each.values())
        return each[0].error if all(one.is_given_up for one in each) else ""

    @property
    def has_answered(self) -> bool:
        """Whether anything ever did."""
        return any(each.has_answered for each in self._each.values())

    def lanes(self) -> list[int]:
        """Those on which nothing answers, or whose node is known not to: not every shard of it is tried."""
        return [lane for lane, place in enumerate(self._places) if self._each[place.label].is_on or place.is_away]

    def met(self, error: Exception) -> None:
        """Nothing can be reached, whatever it is about."""
        for each in set(self._each.values()):
            each.met(error)

    def over(self) -> None:
        """What answers for all has answered."""
        for each in set(self._each.values()):
            each.over()
