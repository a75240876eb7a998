"""Random work of 80 users, counted by the test."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

HOUR = 3600.0
ERRORS = ("no such address", "timeout", "disk full")


@dataclass
class Load:
    """``counts`` of each user and hour have finished tasks, failed attempts, dead letters, kept and missed SLAs, and the dead
    letters of each error behind a "!". ``clock`` is the time. The incident began at ``middle``; ``first_error`` was the first
    dead letter since then."""

    clock: float
    users: list[str]
    middle: float = 0.0
    counts: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)
    first_error: float = 0.0

    def count(self, user: str, first_hour: int) -> Counter[str]:
        """Return the sums of a user since an hour."""
        found = [counts for (name, hour), counts in self.counts.items() if name == user and hour >= first_hour]
        return sum(found, Counter())


def _outcome(lease: Lease, kind: str, error: str) -> Outcome:
    if kind == "finished":
        return Outcome.finish(lease, took=0.1)
    if kind == "failed":
        return Outcome.fail(lease, error, took=0.1)
    return Outcome.discard(lease, "not needed") if kind == "canceled" else Outcome.poison(lease, error)


def run_load(queue: FairQueue, begin: float, incident: str = "") -> Load:
    """Push and settle tasks for some days. In the middle the limit ``incident`` is exceeded, if there is one."""
    rng = random.Random(52)
    load = Load(begin, [f"u{i}" for i in range(80)])

    def note(lease: Lease, kind: str, error: str = "") -> None:
        found = load.counts.setdefault((lease.task.user_id, int(load.clock // HOUR)), Counter())
        is_kept = load.clock - took - lease.task.created_at <= 100
        found.update({kind: 1, "sla_kept": int(is_kept), "sla_missed": int(not is_kept)})
        if error:
            found.update({"dead": 1, f"!{error}": 1})
            if load.middle and not load.first_error:
                load.first_error = load.clock

    for number in range(120):
        if number == 100 and incident:
            load.middle = load.clock
            queue.incidents.open_limit(incident, "too many", now=load.clock)
        some = rng.sample(load.users, rng.randint(1, 80))
        queue.push_batch([Task.create(user, 3, None, sla=100, max_retries=0) for user in some], now=load.clock)
        load.clock += rng.choice([0, 1, 50, 200])
        leases = queue.pop_batch(100, "w", lease=1000, now=load.clock)
        took = rng.choice([1, 60, 900])
        load.clock += took
        outcomes = []
        for lease in leases:
            kind = rng.choice(["finished", "finished", "finished", "failed", "poisoned", "canceled"])
            error = {"failed": rng.choice(ERRORS), "poisoned": "unreadable"}.get(kind, "")
            outcomes.append(_outcome(lease, kind, error))
            note(lease, "failed" if error else kind, error)
        queue.settle(outcomes, 0, worker="w", now=load.clock)
        load.clock += rng.choice([0, 100, 700, 4000])
        while queue.sweep(now=load.clock).more:
            pass
    return load
