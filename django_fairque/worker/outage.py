"""The server is gone: say so once, come back gently, say when it is over."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.queue import FairQueue

logger = logging.getLogger("django_fairque.worker")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""So that all are at work again well within two seconds of the server's return."""


class Outage:
    """Shared by everything in a process that talks to the server, or to a shard's node. Thread-safe."""

    def __init__(self, where: str = "") -> None:
        self._where = where
        self._lock = threading.Lock()
        self._since: float | None = None
        self._attempts = 0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def met(self, error: Exception) -> float:
        """A call failed; returns for how long (seconds) to leave the server alone."""
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()
                self._attempts = 0
                logger.error("%s%s; trying again until it works", self._where, error)
            self._attempts += 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempts - 1, 10))
            return pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads attempts, hides nothing

    def over(self) -> None:
        """A call succeeded."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logger.info("%sthe server answers again, after %.1f s", self._where, time.monotonic() - since)


class Outages:
    """One for each shard of queues that have several, as one may be away while the others are not; one for all else.

    Args:
        places: the queues, or their shards, by lane.
    """

    def __init__(self, places: Sequence[FairQueue]) -> None:
        common = Outage()
        self._places = list(places)
        self._each = {
            place.label: Outage(f"queue {place.label}: ") if place.config.shards > 1 else common for place in places
        }

    def of(self, label: str) -> Outage:
        """By the label of a place."""
        return self._each[label]

    @property
    def is_on(self) -> bool:
        """Whether nothing answers."""
        return all(each.is_on for each in self._each.values())

    def lanes(self) -> list[int]:
        """Those on which nothing answers, or whose node is known not to: not every shard of it is tried."""
        return [lane for lane, place in enumerate(self._places) if self._each[place.label].is_on or place.is_away]

    def met(self, error: Exception) -> None:
        """Nothing can be reached, whatever it is about."""
        for each in set(self._each.values()):
            each.met(error)
