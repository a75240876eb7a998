"""Moving a drained queue to another number of shards.

Users move with their settings, and schedules move with their users. Tasks that have ended are forgotten, and so are the figures
of shards that are removed. Each step can be repeated, and the new number is written last, so an interrupted move is completed
by another call.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection import pages as listing
from django_fairque.engine.maintenance import operations as maintenance
from django_fairque.engine.model.data_format import FORMAT_FIELDS, check_format
from django_fairque.engine.model.errors import (
    ConfigurationError,
    LuaScriptError,
    QueueNotDrainedError,
    RedisConnectionError,
)
from django_fairque.engine.model.ids import new_nonce, split_names
from django_fairque.engine.model.pauses import encode_pause
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.schedules import schedule_ops
from django_fairque.engine.scripting.acts import Act, record_act
from django_fairque.engine.scripting.operations import Operation, Read, Scan, read_users, scan_pattern, slices
from django_fairque.engine.users import organizations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards


USER_SETTING_FIELDS = split_names(
    "explicit plan weight cap rate gap burst backlog max_bytes sla paused pause_note group"
)
"""Fields of a user's record that are settings. The plan is copied first: a limit that is set after the plan becomes
explicit.
"""
PLAN_FIELDS = split_names("weight cap rate gap burst backlog max_bytes sla")
"""Fields that the plan of a user sets, unless the user's record has them as explicit."""
USERS_PER_SCAN = 500
ORGANIZATION_SETTING_FIELDS = ("weight", "cap", "share", "paused", "pause_note")
"""Fields of an organization's record that are settings."""
UNFINISHED_STATES = (TaskState.SCHEDULED, TaskState.DEFERRED, TaskState.QUEUED, TaskState.STARTED)


@dataclass(frozen=True)
class ReshardResult:
    """The numbers of ``users`` and ``schedules`` that were moved, and of ended tasks that were ``forgotten``."""

    users: int
    schedules: int
    forgotten: int


def reshard(old: Shards, new: Shards, now: float | None) -> Operation[ReshardResult]:
    """Move users, organizations, schedules and the queue's pause from the old shards to the new shards.

    Raises:
        QueueNotDrainedError: the queue has waiting or running tasks, dead letters or running workers. Nothing was changed.
    """
    act = Act(old.name, "reshard", "queue", before={"shards": len(old)}, after={"shards": len(new)})
    return (yield from record_act(act, _reshard(old, new, now)))


def _reshard(old: Shards, new: Shards, now: float | None) -> Operation[ReshardResult]:
    yield from _check_drained(old)
    for shard in (*old.all[1:], *new.all[1:]):  # delete the copies of the number before it changes
        yield Read([("DEL", shard.keys("shards"))])
    forgotten = 0
    for shard in old:
        forgotten += yield from _forget_ended(shard, now)
    yield from _copy_organizations(old, new, now)
    users = yield from _move_users(old, new, now)
    moved = yield from _move_schedules(old, new, now)
    if (pause := (yield from maintenance.read_pause(old))) is not None:
        yield from maintenance.set_pause(new, encode_pause(pause), now)
    kept = {shard.keys.shard for shard in new}
    for shard in old:
        if shard.keys.shard not in kept:
            yield from _remove(shard)
    yield from _set_shard_count(new.home, len(new), 0, is_forced=True)  # first on the home shard, whose number counts
    yield from _copy_shard_count(len(new), new.all[1:])
    return ReshardResult(users, moved, forgotten)


def _check_drained(shards: Shards) -> Operation[None]:
    states = [*UNFINISHED_STATES, TaskState.FAILED]
    reads: list[tuple[str, str]] = []
    for shard in shards:
        reads += (("ZCARD", shard.keys.state(state.value)) for state in states)
        reads += (("HLEN", shard.keys("outbox")), ("ZCARD", shard.keys("resolving")))
    sizes = list(map(int, (yield Read(reads))))
    kinds = len(states) + 2
    *unfinished, failed, messages, resolving = (sum(sizes[kind::kinds]) for kind in range(kinds))
    counts = zip(UNFINISHED_STATES, unfinished, strict=True)
    problems = [f"{count} {'task is' if count == 1 else 'tasks are'} {state.value}" for state, count in counts if count]
    if failed:
        problems.append(f"{failed} dead {'letter is' if failed == 1 else 'letters are'} to be requeued or discarded")
    if messages or resolving:
        problems.append("news between tasks are still being carried")
    workers: set[str] = set()
    for shard in shards:
        workers |= {record.worker for record in (yield from listing.workers_of_shard(shard))}
    if workers:
        live = "1 worker lives" if len(workers) == 1 else f"{len(workers)} workers live"
        problems.append(f"{live} ({', '.join(sorted(workers)[:5])}), which must be stopped")
    if problems:
        raise QueueNotDrainedError(
            f"queue {shards.name!r} can't be moved to other shards yet: {'; '.join(problems)}; nothing was changed"
        )


def _forget_ended(shard: Commands, now: float | None) -> Operation[int]:
    total = 0
    for state in (TaskState.FINISHED, TaskState.CANCELED):
        removed = 1
        while removed:
            (ids,) = yield Read([("ZRANGE", shard.keys.state(state.value), 0, USERS_PER_SCAN - 1)])
            removed = int((yield shard.call("forget", [len(ids), *ids], now))) if ids else 0
            total += removed
    return total


def _move_users(old: Shards, new: Shards, now: float | None) -> Operation[int]:
    moved = 0
    for shard in old:
        (names,) = yield Read([("ZRANGE", shard.keys("users"), 0, -1)])
        for some in slices([name.decode() for name in names], USERS_PER_SCAN):
            records = yield from read_users([shard.keys.user(name) for name in some])
            for name, record in zip(some, records, strict=True):
                there = new.get_shard(name)
                if there.keys.shard != shard.keys.shard:
                    moved += yield from _move_user(shard, there, name, record, now)
    return moved


def _move_user(
    shard: Commands, there: Commands, name: str, record: Mapping[bytes, bytes], now: float | None
) -> Operation[int]:
    """Set the user's settings on the new shard, then remove them on the old shard, which later forgets the idle user."""
    held = {field: record[field.encode()] for field in USER_SETTING_FIELDS if field.encode() in record}
    if held.get("weight") == b"1":
        del held["weight"]
    if "plan" in held:
        explicit = held.get("explicit", b"").decode().split()
        held = {field: value for field, value in held.items() if field in explicit or field not in PLAN_FIELDS}
    if not held:
        return 0
    yield there.call("user", [name, len(held), *(part for pair in held.items() for part in pair)], now)
    removed = [part for field in USER_SETTING_FIELDS for part in (field, "")]
    yield shard.call("user", [name, len(USER_SETTING_FIELDS), *removed], now)
    return 1


def _copy_organizations(old: Shards, new: Shards, now: float | None) -> Operation[None]:
    """Copy the settings of organizations, which every shard has, to every new shard."""
    cursor = None
    while True:
        page = yield from organizations.page(old, cursor, USERS_PER_SCAN)
        for name in page.items:
            records = yield Read(
                [("HMGET", shard.keys.organization(name), *ORGANIZATION_SETTING_FIELDS) for shard in old]
            )
            values = next((record for record in records if any(record)), [None] * len(ORGANIZATION_SETTING_FIELDS))
            pairs = zip(ORGANIZATION_SETTING_FIELDS, values, strict=True)
            if held := {field: value for field, value in pairs if value is not None}:
                yield from organizations.change(new, name, held, now)
        cursor = page.cursor
        if cursor is None:
            return


def _move_schedules(old: Shards, new: Shards, now: float | None) -> Operation[int]:
    moved = 0
    for shard in old:
        for schedule in (yield from schedule_ops.schedules_of_shard(shard)):
            there = new.get_shard(str(schedule.task["user_id"]))
            if there.keys.shard != shard.keys.shard:
                args = ["set", schedule.name, b"", schedule.stored, schedule_ops.due_argument(schedule.next_at)]
                yield there.call("schedule", args, now, reply=new_nonce())
                yield from schedule_ops.remove(shard, schedule.name, now)
                moved += 1
    return moved


def _remove(shard: Commands) -> Operation[None]:
    """Delete the remaining keys of a shard that is given up: figures, idle users, registries."""
    prefix, cursor = str(shard.keys), None
    while cursor != 0:
        cursor, found = yield Scan(prefix, scan_pattern(prefix), cursor or 0)
        if found:
            yield Read([("DEL", key) for key in found])


def read_shard_count(shards: Shards) -> Operation[int]:
    """Return the number of shards that have the queue's data, whatever number is configured."""
    (written,) = yield Read([("GET", shards.home.keys("shards"))])
    return int(written or 1)


def check_shard_count(shards: Shards, servers: int = 0) -> Operation[bool]:
    """Check that the queue's data agree with the configuration. Return whether the number of shards is known.

    Raises `ConfigurationError` if the queue has another number of shards than is configured, or a server has another shard
    than the configuration says, and `DataFormatError` if another version wrote its data. ``servers`` is the number of servers
    if each shard has its own server; 0 (the default) if not. The number of shards is not known if the first shard can't be
    reached and the others have no copy of the number.
    """
    configured, living = shards.config.shards, tuple(shards)
    reads = [("GET", shard.keys("shards")) for shard in living]
    replies = yield Read([*reads, *(("HMGET", shard.keys("stats"), *FORMAT_FIELDS) for shard in living)])
    found, formats = replies[: len(living)], replies[len(living) :]
    for values in formats:
        check_format(shards.name, values)
    lies_on = next((int(count) for count in found if count is not None), 1 if configured == 1 else None)
    if configured > 1 and shards.is_present(shards.home) and found[0] is None:
        lies_on = yield from _set_shard_count(shards.home, configured, servers)
    if lies_on is None:
        return False
    if lies_on != configured:
        raise ConfigurationError(
            f"queue {shards.name!r} lies on {lies_on} {'shard' if lies_on == 1 else 'shards'} and is configured to lie on "
            f"{configured}: its users would not be found any more. Set SHARDS back, or let the queue drain, stop its workers "
            f"and run 'manage.py fairque_reshard --queue {shards.name} --shards {configured}'"
        )
    without = [shard for shard, count in zip(living, found, strict=True) if count is None and shard is not shards.home]
    yield from _copy_shard_count(lies_on, without, servers)
    return True


def _set_shard_count(shard: Commands, number: int, servers: int, *, is_forced: bool = False) -> Operation[int]:
    found = int((yield shard.call("set_shard_count", [number, int(is_forced), servers], None)))
    if found < 0:
        raise ConfigurationError(
            f"the server of shard {shard.keys.shard} of queue {shard.name!r} has shard {-1 - found} of it: REDIS.URL must "
            "name each server once, and in the same order as before. Set the order back"
        )
    return found


def _copy_shard_count(number: int, shards: Sequence[Commands], servers: int = 0) -> Operation[None]:
    for shard in shards:
        # If this process may not write, or the shard can't be reached, another process writes the copy.
        with suppress(RedisConnectionError, LuaScriptError):
            yield from _set_shard_count(shard, number, servers, is_forced=True)
