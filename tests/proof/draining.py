"""What every proof asks in the end: everything mended, nothing lost, every task brought to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine import users
from django_fairque.engine.outcomes import Outcome

from .walk import USERS

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue

LIVE = ("scheduled", "deferred", "queued", "started")


def drain(queue: FairQueue, now: float) -> None:
    """Lift every limit and work until nothing waits, as a healthy installation would; no more than 40 rounds."""
    queue.resume(now=now)
    limits: dict[str, object] = {"paused": "", "cap": "", "gap": "", "burst": ""}
    for name in USERS:
        queue._run(users.change(queue._shards.home, name, limits, now))
    for _ in range(40):
        now += 65
        while queue.sweep(now=now).more:
            pass
        while leases := queue.pop_batch(20, "drain", now=now):
            queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], now=now)
        states = queue.get_stats().states
        if not any(states.get(state, 0) for state in LIVE):
            return
        if not any(states.get(state, 0) for state in ("scheduled", "queued", "started")):
            queue.dlq.discard_all(now=now)  # what is deferred waits for dead letters: a person gives them up
    raise AssertionError(f"not drained: {queue.get_stats().states}")
