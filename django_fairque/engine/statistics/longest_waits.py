"""What a whole queue has waiting: who has waited longest, and whose it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import check_limit
from django_fairque.engine.model.durations import number
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, ORGANIZATION_PREFIX
from django_fairque.engine.scripting.operations import Read, read_sound

if TYPE_CHECKING:
    from typing import Any

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation


SCORE_PER_PRIORITY = 1e15
"""One priority's room in a normal queue's score, as in lua/lib/base.lua."""
MAX_SERVED_USERS = 100
"""Users who can be served and whose oldest tasks are read, when the oldest tasks of the queue are held back."""


@dataclass(frozen=True)
class WaitingTask:
    """A task that can start and has not, ready since ``since`` (seconds since the epoch)."""

    task_id: str
    user_id: str
    since: float


@dataclass(frozen=True)
class Waits:
    """The longest waits, the longest first: of tasks that could start now, and of tasks that are held back.

    A task is held back while the queue, its user or its organization is paused, and while the user or the organization has
    its number of running tasks or is out of rate.
    """

    could_start: list[WaitingTask]
    held_back: list[WaitingTask]


def longest_waits(commands: Commands, limit: int) -> Operation[list[WaitingTask]]:
    """Of tasks that could start now, the longest first."""
    return (yield from waits(commands, limit)).could_start


def waits(commands: Commands, limit: int) -> Operation[Waits]:
    """Of twice ``limit`` tasks: those that come first in their class, and those whose promise is broken.

    If some of these are held back, the oldest tasks of the users who are served next are looked at too: a bulk of held-back
    tasks then hides no other task as long as at most `MAX_SERVED_USERS` users can be served.
    """
    check_limit(limit)
    queued = commands.keys.state("queued")
    reads = [
        ("ZRANGE", queued, 0, limit - 1),
        ("ZRANGEBYSCORE", queued, NEVER_MICROSECONDS, "+inf", "LIMIT", 0, limit),
        ("HGET", commands.keys("stats"), "paused"),
    ]
    nearest, oldest, paused = yield Read(reads)
    is_paused = float(paused or 0) == 1
    found = yield from _read_tasks(commands, [task_id.decode() for task_id in dict.fromkeys([*nearest, *oldest])])
    served = set() if is_paused else (yield from _served(commands, {each.user_id for each in found}))
    held_back = [each for each in found if each.user_id not in served]
    could_start = [each for each in found if each.user_id in served]
    if held_back and not is_paused:
        heads = yield from _heads(commands, (yield from _next_users(commands)))
        could_start = list({each.task_id: each for each in [*could_start, *heads]}.values())
    return Waits(*(sorted(some, key=lambda each: each.since)[:limit] for some in (could_start, held_back)))


def _read_tasks(commands: Commands, ids: list[str]) -> Operation[list[WaitingTask]]:
    if not ids:
        return []
    records = yield from read_sound(
        [("HMGET", commands.keys.task(task_id), "user", "ready", "created") for task_id in ids]
    )
    return [
        WaitingTask(task_id, user.decode(), number(ready or created) / 1_000_000)
        for task_id, (user, ready, created) in zip(ids, records, strict=True)
        if user is not None  # it has gone since the registry was read
    ]


def _served(commands: Commands, user_ids: set[str]) -> Operation[set[str]]:
    """Those of the users who are in the ring, or in the ring of an organization that is in it."""
    names, keys = sorted(user_ids), commands.keys
    if not names:
        return set()
    (places,) = yield Read([("ZMSCORE", keys("ring"), *names)])
    served = {name for name, place in zip(names, places, strict=True) if place is not None}
    others = [name for name in names if name not in served]
    if not others:
        return served
    organizations = yield from read_sound([("HGET", keys.user(name), "group") for name in others])
    members = [
        (name, organization.decode())
        for name, organization in zip(others, organizations, strict=True)
        if organization is not None
    ]
    if not members:
        return served
    reads = [("ZSCORE", keys("ring"), ORGANIZATION_PREFIX + organization.encode()) for _, organization in members]
    reads += [("ZSCORE", keys.members(organization), name) for name, organization in members]
    found = yield from read_sound(reads)
    in_ring, in_organization = found[: len(members)], found[len(members) :]
    return served | {
        name
        for (name, _), organization_place, place in zip(members, in_ring, in_organization, strict=True)
        if organization_place is not None and place is not None
    }


def _next_users(commands: Commands) -> Operation[list[str]]:
    """The users who are served next, at most `MAX_SERVED_USERS`: those in the ring, and members of organizations in it."""
    (entries,) = yield Read([("ZRANGE", commands.keys("ring"), 0, MAX_SERVED_USERS - 1)])
    names = [entry.decode() for entry in entries if not entry.startswith(ORGANIZATION_PREFIX)]
    organizations = [
        entry[len(ORGANIZATION_PREFIX) :].decode() for entry in entries if entry.startswith(ORGANIZATION_PREFIX)
    ]
    if organizations:
        reads = [
            ("ZRANGE", commands.keys.members(organization), 0, MAX_SERVED_USERS - 1) for organization in organizations
        ]
        names += [name.decode() for members in (yield from read_sound(reads)) for name in members]
    return names[:MAX_SERVED_USERS]


def _heads(commands: Commands, user_ids: list[str]) -> Operation[list[WaitingTask]]:
    """The oldest task of each priority of each user."""
    if not user_ids:
        return []
    keys = commands.keys
    reads: list[tuple[Any, ...]] = [("LRANGE", keys.critical(user_id), 0, 0) for user_id in user_ids]
    for user_id in user_ids:
        for priority in range(1, 6):
            band = (f"{priority * SCORE_PER_PRIORITY:.0f}", f"({(priority + 1) * SCORE_PER_PRIORITY:.0f}")
            reads.append(("ZRANGEBYSCORE", keys.normal(user_id), *band, "LIMIT", 0, 1))
    found = yield from read_sound(reads)
    return (yield from _read_tasks(commands, [task_id.decode() for ids in found for task_id in ids]))


def waiting_by_user(commands: Commands, sample: int) -> Operation[Counter[str]]:
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
