"""The server is gone: say so once, come back gently, say when it is over."""

from __future__ import annotations

import logging
import random
import threading
import time

logger = logging.getLogger("django_fairque.worker")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""So that all are at work again well within two seconds of the server's return."""


class Outage:
    """Shared by everything in a process that talks to the server. Thread-safe."""

    def __init__(self) -> None:
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
                logger.error("%s; trying again until it works", error)
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
            logger.info("the server answers again, after %.1f s", time.monotonic() - since)
