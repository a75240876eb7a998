"""Canceling what waits: of a whole queue, or of one user; in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.inspection.task_lookup import cancel_noting
from django_fairque.engine.model.durations import MAX_EXACT_INTEGER, check_integer
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.scripting.operations import Read

if TYPE_CHECKING:
    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation

TASKS_PURGED_PER_CALL = min(500, MAX_CALL_ITEMS)
"""Tasks canceled by one script call: some 10 ms of the server's time."""

NOT_READY_COUNTERS = {"deferred": "deferred", "scheduled": "sched"}
"""The states of what waits for others or for its time, and where a user's record counts it. It comes first: it may become
ready meanwhile."""


def purge(commands: Commands, limit: int, note: Note, now: float | None) -> Operation[int]:
    """Cancel what a shard has waiting, at most ``limit`` tasks; how many. `TaskValidationError` for a limit below 1."""
    check_integer(limit, "limit", 1)
    total = 0
    for state in (*NOT_READY_COUNTERS, "queued"):
        index = 0
        while total < limit:
            last = index + min(TASKS_PURGED_PER_CALL, limit - total) - 1
            (ids,) = yield Read([("ZRANGE", commands.keys.state(state), index, last)])
            if not ids:
                break
            done = yield from _cancel(commands, ids, note, now)
            total += done
            index += len(ids) - done
    return total


def purge_user(commands: Commands, user_id: str, limit: int | None, note: Note, now: float | None) -> Operation[int]:
    """As `purge`, of one user: at most ``limit`` tasks, or all."""
    if limit is None:
        limit = MAX_EXACT_INTEGER
    check_integer(limit, "limit", 1)
    total = 0
    for state, counter in NOT_READY_COUNTERS.items():
        while total < limit and (yield from _count(commands, user_id, counter)):
            done = yield from _look_through(commands, state, user_id, limit - total, note, now)
            if not done:
                break
            total += done
    return total + (yield from _purge_ready(commands, user_id, limit - total, note, now))


def _count(commands: Commands, user_id: str, counter: str) -> Operation[int]:
    (found,) = yield Read([("HGET", commands.keys.user(user_id), counter)])
    return int(float(found or 0))


def _look_through(
    commands: Commands, state: str, user_id: str, limit: int, note: Note, now: float | None
) -> Operation[int]:
    """Cancel a user's tasks in a registry of everybody's, as long as it has some; once through.

    What is canceled takes along what depends on it, so others may move up to where was looked already.
    """
    keys, user = commands.keys, user_id.encode()
    index = total = 0
    while total < limit:
        (ids,) = yield Read([("ZRANGE", keys.state(state), index, index + TASKS_PURGED_PER_CALL - 1)])
        if not ids:
            break
        owners = yield Read([("HGET", keys.task(task_id.decode()), "user") for task_id in ids])
        places = [place for place, owner in enumerate(owners) if owner == user][: limit - total]
        looked_at = places[-1] + 1 if len(places) == limit - total else len(ids)
        done = 0
        if places:
            done = yield from _cancel(commands, [ids[place] for place in places], note, now)
            total += done
            if not (yield from _count(commands, user_id, NOT_READY_COUNTERS[state])):
                break
        index += looked_at - done
    return total


def _purge_ready(commands: Commands, user_id: str, limit: int, note: Note, now: float | None) -> Operation[int]:
    keys, total = commands.keys, 0
    while total < limit:
        last = min(TASKS_PURGED_PER_CALL, limit - total) - 1
        reads = [("LRANGE", keys.critical(user_id), 0, last), ("ZRANGE", keys.normal(user_id), 0, last)]
        critical, normal = yield Read(reads)
        ids = [*critical, *normal][: last + 1]
        done = (yield from _cancel(commands, ids, note, now)) if ids else 0
        if not done:
            break
        total += done
    return total


def _cancel(commands: Commands, ids: list[bytes], note: Note, now: float | None) -> Operation[int]:
    return len((yield from cancel_noting(commands, [task_id.decode() for task_id in ids], "purged", note, now)))
