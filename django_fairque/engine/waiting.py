"""What a whole queue has waiting: who has waited longest, and whose it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .commands import NEVER
from .listing import check_limit
from .steps import Read
from .units import seconds

if TYPE_CHECKING:
    from .commands import Commands
    from .steps import Steps


@dataclass(frozen=True)
class Waiting:
    """A task that can start and has not, ready since ``since`` (seconds since the epoch)."""

    task_id: str
    user_id: str
    since: float


def longest_waits(commands: Commands, limit: int) -> Steps[list[Waiting]]:
    """The longest first. Of twice ``limit`` tasks: those that come first in their class, and those whose promise is broken."""
    check_limit(limit)
    queued = commands.keys.state("queued")
    reads = [("ZRANGE", queued, 0, limit - 1), ("ZRANGEBYSCORE", queued, NEVER, "+inf", "LIMIT", 0, limit)]
    nearest, eldest = yield Read(reads)
    ids = [task_id.decode() for task_id in dict.fromkeys([*nearest, *eldest])]
    if not ids:
        return []
    records = yield Read([("HMGET", commands.keys.task(task_id), "user", "ready", "created") for task_id in ids])
    found = [
        Waiting(task_id, user.decode(), seconds(ready or created) or 0.0)
        for task_id, (user, ready, created) in zip(ids, records, strict=True)
        if user is not None  # it has gone since the registry was read
    ]
    return sorted(found, key=lambda each: each.since)[:limit]


def waiting_by_user(commands: Commands, sample: int) -> Steps[Counter[str]]:
    """How many of ``sample`` tasks of each state in which tasks wait, drawn at random, are whose.

    By chance and not at fixed distances, because tasks that come in a rhythm would be drawn in it, and some never.
    """
    check_limit(sample)
    states = [commands.keys.state(state) for state in ("queued", "scheduled", "deferred")]
    drawn = yield Read([("ZRANDMEMBER", state, sample) for state in states])
    ids = [task_id.decode() for some in drawn for task_id in some]
    if not ids:
        return Counter()
    users = yield Read([("HGET", commands.keys.task(task_id), "user") for task_id in ids])
    return Counter(user.decode() for user in users if user is not None)
