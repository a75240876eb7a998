"""Measures the time until other workers can get the tasks of a dead or frozen process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from .journal import ChildName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

EVERY = 0.005
"""Seconds between two looks."""
FOR_GOOD = 0.3
"""Seconds for which leases must be gone: a call that was under way when its process died may fetch some once more."""


@dataclass
class Pending:
    fault: str
    worker: str
    since: float
    gone: float | None = None
    """When its leases were seen to be gone, if they still are."""


class Recoveries(threading.Thread):
    """Watches the leases of workers that were killed. Seconds per fault are in ``taken``.

    While the server itself is away nobody can give anything back: what is pending then counts from its return.
    """

    def __init__(self, client: Redis, prefix: str) -> None:
        super().__init__(name="recoveries", daemon=True)
        self._client, self._prefix = client, prefix
        self._pending: list[Pending] = []
        self._lock = threading.Lock()
        self._ended = False
        self.taken: dict[str, list[float]] = defaultdict(list)

    def key(self, worker: str) -> str:
        return f"{self._prefix}leases:{worker}"

    def expect(self, fault: str, workers: Sequence[str]) -> None:
        """Wait for the return of these workers' leases from now on. A worker that was pending counts for this fault."""
        now = time.monotonic()
        with self._lock:
            self._pending = [loss for loss in self._pending if loss.worker not in workers]
            self._pending += [Pending(fault, worker, now) for worker in workers]

    def inherit(self, fault: str, supervisor: int) -> None:
        """Count the pending returns of this supervisor, which can't give back anything now, for this fault."""
        now = time.monotonic()
        with self._lock:
            for loss in self._pending:
                if ChildName(0, loss.worker).supervisor == supervisor:
                    loss.fault, loss.since = fault, now

    def add(self, fault: str, seconds: float) -> None:
        with self._lock:
            self.taken[fault].append(seconds)

    def begin_again(self) -> None:
        """The server is back: nobody could do anything until now."""
        now = time.monotonic()
        with self._lock:
            for loss in self._pending:
                loss.since = now if loss.gone is None else loss.since

    def left(self) -> list[str]:
        with self._lock:
            return [f"{loss.fault}: {loss.worker}" for loss in self._pending]

    def end(self) -> None:
        self._ended = True
        self.join()

    def run(self) -> None:
        while not self._ended:
            with self._lock:
                pending = list(self._pending)
            if pending:
                try:
                    self._look(pending)
                except RedisError:  # the server is away, which `begin_again` accounts for
                    time.sleep(0.02)
            time.sleep(EVERY)

    def _look(self, pending: Sequence[Pending]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for loss in pending:
                pipe.exists(self.key(loss.worker))
            there = pipe.execute()
        now = time.monotonic()
        with self._lock:
            for loss, has_leases in zip(pending, there, strict=True):
                loss.gone = None if has_leases else loss.gone or now
                if loss.gone and now - loss.gone >= FOR_GOOD and loss in self._pending:
                    self._pending.remove(loss)
                    self.taken[loss.fault].append(max(0.0, loss.gone - loss.since))
