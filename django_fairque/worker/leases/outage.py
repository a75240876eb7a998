"""Outages of the server. The start and the end of each outage are logged once, and calls during an outage are
spaced.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import JITTER
from django_fairque.worker.common.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerOptions


FIRST_RECONNECT_PAUSE_SECONDS = 0.05
MAX_RECONNECT_PAUSE_SECONDS = 1.0
"""Maximum seconds between two attempts to reach the server. So all workers work again well within two seconds of the
server's return."""


class Outage:
    """An outage of the server or of a shard's node. All parts of a process that call this server share one object.
    Thread-safe.

    Args:
        startup_timeout: seconds to wait for a server that has never answered.
    """

    def __init__(self, log_prefix: str = "", startup_timeout: float = math.inf) -> None:
        self._log_prefix = log_prefix
        self._startup_timeout = startup_timeout
        self.has_answered = False
        self.error = ""
        """The error of the last call that failed."""
        self._lock = threading.Lock()
        self._since: float | None = None
        self._attempts = 0

    @property
    def is_ongoing(self) -> bool:
        return self._since is not None

    @property
    def has_startup_timed_out(self) -> bool:
        """Return whether the server has never answered and the startup time-out has passed."""
        since = self._since
        return not self.has_answered and since is not None and time.monotonic() - since >= self._startup_timeout

    def record_failure(self, error: Exception) -> float:
        """Record a failed call. Return the number of seconds for which no call should be made."""
        with self._lock:
            self.error = str(error)
            if self._since is None:
                self._since = time.monotonic()
                self._attempts = 0
                if self.has_answered or self._startup_timeout == math.inf:
                    logger.error("%s%s; trying again until it works", self._log_prefix, error)
                else:
                    logger.error("%s%s; trying again for %g s", self._log_prefix, error, self._startup_timeout)
            self._attempts += 1
            pause = min(MAX_RECONNECT_PAUSE_SECONDS, FIRST_RECONNECT_PAUSE_SECONDS * 2.0 ** min(self._attempts - 1, 10))
            return pause * JITTER.uniform(0.5, 1.0)

    def record_success(self) -> None:
        """Record a successful call, and end the outage if there is one."""
        self.has_answered = True
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            logger.info("%sthe server answers again, after %.1f s", self._log_prefix, time.monotonic() - since)


def get_startup_timeout(options: WorkerOptions, queues: Sequence[FairQueue]) -> float:
    """Return the seconds to wait for a server that has never answered. A burst waits for a limited time; other workers
    wait without limit.
    """
    return max(queue.config.request_timeout for queue in queues) if options.burst else math.inf


class Outages:
    """The outages of all shards. Each shard of a queue with several shards has its own outage, because other shards may
    still answer. All queues with a single shard have one outage in common.

    Args:
        shards: the shards of all queues, in the order of their indexes in this worker. startup_timeout: passed to each
        `Outage`.
    """

    def __init__(self, shards: Sequence[FairQueue], startup_timeout: float = math.inf) -> None:
        common = Outage("", startup_timeout)
        self._shards = list(shards)
        self._outages = {
            shard.display_name: Outage(f"queue {shard.display_name}: ", startup_timeout)
            if shard.config.shards > 1
            else common
            for shard in shards
        }

    def for_shard(self, label: str) -> Outage:
        """Return the outage of the queue or shard with this ``label``."""
        return self._outages[label]

    @property
    def is_ongoing(self) -> bool:
        """Return whether no server answers."""
        return all(outage.is_ongoing for outage in self._outages.values())

    @property
    def startup_error(self) -> str:
        """Return the error because of which the worker gives up waiting: no server has answered within the startup
        time-out. Empty while the worker still waits for a server.
        """
        outages = list(self._outages.values())
        return outages[0].error if all(outage.has_startup_timed_out for outage in outages) else ""

    @property
    def has_answered(self) -> bool:
        """Return whether any server has ever answered."""
        return any(outage.has_answered for outage in self._outages.values())

    def unreachable_shards(self) -> list[int]:
        """Return the shards that do not answer, and all other shards on nodes that are known to be unreachable, because
        not every shard of such a node is tried.
        """
        return [
            shard_index
            for shard_index, shard in enumerate(self._shards)
            if self._outages[shard.display_name].is_ongoing or shard.is_away
        ]

    def record_failure(self, error: Exception) -> None:
        """Record that no shard can be reached."""
        for outage in set(self._outages.values()):
            outage.record_failure(error)

    def record_success(self) -> None:
        """Record that the servers of all shards have answered."""
        for outage in set(self._outages.values()):
            outage.record_success()
