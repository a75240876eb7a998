"""Schedules over the shards of a queue: each lives on the shard of its task's user, where it is fired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import Listed
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import check_whole, moment
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.schedules import operations as schedules
from django_fairque.engine.scripting.operations import Read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.schedule import Fired, Schedule, Template
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards


def places(shards: Shards, name: str, task: Task | Template) -> Steps[tuple[Commands, Sequence[Commands]]]:
    """Where a schedule is to be, and from which shards it is to be removed, as its task had another user before."""
    there = shards.of(schedules.user_of(task))
    if len(shards) == 1:
        return there, ()
    holders = yield from _holders(shards, name)
    if not holders:
        shards.check_present(f"whether there is a schedule {name!r} can't be told")
        if (yield from _total(shards)) >= schedules.MOST:
            raise schedules.too_many(shards.home)
    return there, [shard for shard in holders if shard is not there]


def add(
    place: tuple[Commands, Sequence[Commands]],
    name: str,
    task: Task | Template,
    options: dict[str, Any],
    now: float | None,
) -> Steps[Schedule]:
    """On another shard than before when its task has another user: then the one of before is removed first."""
    there, others = place
    for shard in others:
        yield from schedules.remove(shard, name, now)
    return (yield from schedules.add(there, name, task, options, now))


def _total(shards: Shards) -> Steps[int]:
    total = 0
    for shard in shards:
        total += yield from schedules.count(shard)
    return total


def list_all(shards: Shards) -> Steps[Listed[Schedule]]:
    found: list[Schedule] = []
    for shard in shards:
        found += yield from schedules.list_all(shard)
    return Listed(sorted(found, key=lambda schedule: schedule.name), shards.missing)


def fire_due(shards: Shards, limit: int, now: float | None) -> Steps[list[Fired]]:
    check_whole(limit, "limit", 1)
    fired: list[Fired] = []
    for shard in shards:
        left = limit - sum(not each.is_refused for each in fired)
        if left > 0:
            fired += yield from schedules.fire_due(shard, left, now)
    return fired


def next_due(shards: Shards, after: float | None) -> Steps[float | None]:
    start = yield from server_time(moment(after, "after"))
    found = []
    for shard in shards:
        found.append((yield from schedules.next_due(shard, start)))
    return min((each for each in found if each is not None), default=None)


def holder(shards: Shards, name: str) -> Steps[Commands]:
    """The shard of a schedule; that of home when there is none of this name, and it says so."""
    found = yield from _holders(shards, name)
    if not found:
        shards.check_present(f"whether there is a schedule {name!r} can't be told")
    return next(iter(found), shards.home)


def _holders(shards: Shards, name: str) -> Steps[list[Commands]]:
    if len(shards) == 1:
        return [shards.home]
    check_id(name, "a schedule's name")
    living = tuple(shards)
    known = yield Read([("HEXISTS", shard.keys("schedules"), name) for shard in living])
    return [shard for shard, is_there in zip(living, known, strict=True) if is_there]
