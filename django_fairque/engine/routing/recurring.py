"""Schedules over the shards of a queue: each lives on the shard of its task's user, where it is fired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine import schedules
from django_fairque.engine.ids import check_id
from django_fairque.engine.steps import Read

if TYPE_CHECKING:
    from django_fairque.engine.commands import Commands
    from django_fairque.engine.models import Task
    from django_fairque.engine.schedule import Fired, Schedule, Template
    from django_fairque.engine.shards import Shards
    from django_fairque.engine.steps import Steps


def add(
    shards: Shards, name: str, task: Task | Template, options: dict[str, Any], now: float | None
) -> Steps[Schedule]:
    """On another shard than before when its task has another user: then the one of before is removed first."""
    if len(shards) == 1:
        return (yield from schedules.add(shards.home, name, task, options, now))
    there = shards.of(schedules.user_of(task))
    holders = yield from _holders(shards, name)
    if not holders and (yield from _total(shards)) >= schedules.MOST:
        raise schedules.too_many(shards.home)
    for shard in holders:
        if shard is not there:
            yield from schedules.remove(shard, name, now)
    return (yield from schedules.add(there, name, task, options, now))


def _total(shards: Shards) -> Steps[int]:
    total = 0
    for shard in shards:
        total += yield from schedules.count(shard)
    return total


def remove(shards: Shards, name: str, now: float | None) -> Steps[bool]:
    return (yield from schedules.remove((yield from _holder(shards, name)), name, now))


def set_enabled(shards: Shards, name: str, *, enabled: bool, now: float | None) -> Steps[None]:
    yield from schedules.set_enabled((yield from _holder(shards, name)), name, enabled=enabled, now=now)


def sign(shards: Shards, name: str, now: float | None) -> Steps[None]:
    yield from schedules.sign((yield from _holder(shards, name)), name, now)


def run_now(shards: Shards, name: str, now: float | None) -> Steps[str]:
    return (yield from schedules.run_now((yield from _holder(shards, name)), name, now))


def get(shards: Shards, name: str) -> Steps[Schedule]:
    return (yield from schedules.get((yield from _holder(shards, name)), name))


def list_all(shards: Shards) -> Steps[list[Schedule]]:
    found: list[Schedule] = []
    for shard in shards:
        found += yield from schedules.list_all(shard)
    return sorted(found, key=lambda schedule: schedule.name)


def fire_due(shards: Shards, limit: int, now: float | None) -> Steps[list[Fired]]:
    fired: list[Fired] = []
    for shard in shards:
        if len(fired) < limit:
            fired += yield from schedules.fire_due(shard, limit - len(fired), now)
    return fired


def _holder(shards: Shards, name: str) -> Steps[Commands]:
    """The shard of a schedule; that of home when there is none of this name, and it says so."""
    return next(iter((yield from _holders(shards, name))), shards.home)


def _holders(shards: Shards, name: str) -> Steps[list[Commands]]:
    if len(shards) == 1:
        return [shards.home]
    check_id(name, "a schedule's name")
    known = yield Read([("HEXISTS", shard.keys("schedules"), name) for shard in shards])
    return [shard for shard, is_there in zip(shards, known, strict=True) if is_there]
