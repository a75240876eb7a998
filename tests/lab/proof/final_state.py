"""The final check of every proof: all damage is repaired, nothing is lost, and every task has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.users import users
from tests.lab.proof.random_history import USERS

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

LIVE = ("scheduled", "deferred", "queued", "started")


def settle_down(queue: FairQueue, now: float) -> None:
    """The maintenance that goes on all the time, until it has nothing to do."""
    while True:
        is_swept = not queue.sweep(now=now).more
        if not queue.carry_messages(now=now) and is_swept:
            return


def drain(queue: FairQueue, now: float) -> list[str]:
    """Lift every limit and work until nothing waits, as a healthy installation would; no more than 40 rounds.

    Returns the tasks in the order in which they were started.
    """
    started: list[str] = []
    queue.resume(now=now)
    limits: dict[str, object] = {"paused": "", "cap": "", "gap": "", "burst": ""}
    for name in USERS:
        queue._run(users.change(queue._shards.get_shard(name), name, limits, now))
    for organization in queue.organizations().items:
        queue.organization(organization).resume(now=now)
        queue.organization(organization).set_max_running(None, now=now)
    for _ in range(40):
        now += 65
        settle_down(queue, now)
        while leases := queue.pop_batch(20, "drain", now=now):
            started += [lease.task_id for lease in leases]
            queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], now=now)
            settle_down(queue, now)
        states = queue.get_stats().states
        if not any(states.get(state, 0) for state in LIVE):
            return started
        if not any(states.get(state, 0) for state in ("scheduled", "queued", "started")):
            queue.dlq.discard_all(now=now)  # deferred tasks wait for dead letters, which a person would discard
    raise AssertionError(f"not drained: {queue.get_stats().states}")
