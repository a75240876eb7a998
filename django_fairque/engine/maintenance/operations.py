"""Bounded maintenance, and pausing a whole queue."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from django_fairque.engine.maintenance.invariants import WRONG_TYPE_INVARIANT, check_shard
from django_fairque.engine.maintenance.samples import record_sample
from django_fairque.engine.maintenance.snapshot import Violation, encode_name
from django_fairque.engine.model.pauses import PAUSE_FIELDS, Pause, PauseEnd, decode_pause, pause_fields, pause_values
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands, Fields, list_fields
from django_fairque.engine.scripting.operations import Operation, Read, slices
from django_fairque.engine.sharding.shards import Shards, sum_over_shards


@dataclass(frozen=True)
class Sweep:
    """The result of one bounded round of maintenance. ``more`` means that `sweep` should be called again at once. Moments are
    Unix times.

    These are numbers of tasks: ``due`` became ready, ``reaped`` lost a lease that had ended, ``expired`` became dead
    letters because they had not started in time, ``overdue`` missed their SLA while they waited, ``at_risk`` will soon
    miss it, ``promoted`` were promoted after a long wait, ``forgotten`` had ended long ago, ``dropped`` were in a registry
    by mistake. ``freed`` is the number of users whose rate allows another task, and of users and organizations whose pause
    has ended.

    ``alerts`` is the number of alerts that wait to be fetched, ``messages`` the number of messages that wait to be carried
    to other shards. ``incidents`` is not 0 while incidents are open or workers are lost. ``acts`` is the number
    of acts on many tasks that workers carry out. ``look_at`` is the moment of the
    next due maintenance, ``schedule_at`` that of the next schedule; None if there is none. ``now`` is the server's time.
    """

    due: int
    reaped: int
    expired: int
    overdue: int
    freed: int
    forgotten: int
    dropped: int
    more: bool
    look_at: float | None
    now: float
    at_risk: int = 0
    promoted: int = 0
    alerts: int = 0
    schedule_at: float | None = None
    messages: int = 0
    incidents: int = 0
    acts: int = 0


def sweep(shards: Shards, now: float | None) -> Operation[Sweep]:
    replies = []
    for shard in shards:
        *reply, is_sample_due = [int(float(value)) for value in (yield shard.call("sweep", [], now))]
        replies.append(reply)
        if is_sample_due:
            yield from record_sample(shard, now)
    # The values of a reply are in the order of the fields of `Sweep`. Moments are microseconds.
    columns = {field.name: column for field, column in zip(fields(Sweep), zip(*replies, strict=True), strict=True)}
    whole: dict[str, Any] = {name: sum(column) for name, column in columns.items()}
    whole["more"] = any(columns["more"])
    whole["now"] = max(columns["now"]) / 1_000_000
    for name in ("look_at", "schedule_at"):
        earliest = min(columns[name])
        whole[name] = None if earliest >= NEVER_MICROSECONDS else earliest / 1_000_000
    return Sweep(**whole)


def pause(shards: Shards, note: str, until: PauseEnd, now: float | None) -> Operation[None]:
    fields = pause_fields(note, until, now)
    yield from record_act(
        Act(shards.name, "pause", "queue"), set_pause(shards, fields, now), partial(_read_values, shards)
    )


def change_pause_if(shards: Shards, act: str, fields: Fields, expected: Fields, now: float | None) -> Operation[bool]:
    steps = set_pause(shards, fields, now, expected)
    return (yield from record_act(Act(shards.name, act, "queue"), steps, partial(_read_values, shards)))


def set_pause(
    shards: Shards, pause_record: Fields, now: float | None, expected: Fields | None = None
) -> Operation[bool]:
    """Pause or resume the shards that can be reached, then raise `ShardsAwayError` if some can't be reached. Return
    False if the first shard does not have the expected values.
    """
    for shard in shards:
        values = [pause_record[name] or ("" if name == "pause_note" else 0) for name in PAUSE_FIELDS]
        if (yield shard.call("pause", [*values, *list_fields(expected)], now)) == 0:
            return False
        expected = None
    shards.check_present("paused without some")
    return True


def resume(shards: Shards, now: float | None) -> Operation[None]:
    """Resume the shards that can be reached, then raise `ShardsAwayError` if some can't be reached."""

    def change() -> Operation[None]:
        for shard in shards:
            yield shard.call("pause", [0, ""], now)
        shards.check_present("resumed without some")

    yield from record_act(Act(shards.name, "resume", "queue"), change(), partial(_read_values, shards))


def _read_values(shards: Shards) -> Operation[Values]:
    return pause_values((yield from read_pause(shards)))


def read_pause(shards: Shards) -> Operation[Pause | None]:
    """Return the pause of the first shard; None if one shard is not paused."""
    first: Pause | None = None
    for shard in shards:
        (values,) = yield Read([("HMGET", shard.keys("stats"), *PAUSE_FIELDS)])
        found = decode_pause(dict(zip((b"paused", b"pause_note"), values, strict=True)))
        if found is None:
            return None
        first = first or found
    shards.check_present("the pause of the queue can't be read")
    return first


def is_paused(shards: Shards) -> Operation[bool]:
    return (yield from read_pause(shards)) is not None


MAX_REPAIR_ROUNDS = 12
REPAIRS_PER_CALL = 100
REPAIR_ORDER = (
    ("task", "index", "queue", "lease", "run", "key", "mirror", "watchers", "result"),
    ("edge",),
    ("limit",),
    ("limited",),
    ("user", "stat"),
    ("place", "member"),
    ("group",),
    ("standing",),
    ("sum",),
)
"""Kinds of fixes in the order in which they are made, because each check needs the data before it: tasks, dependencies between
them, limits, counters, the rings of users, and then counters and rings of organizations.
"""
FIX_NOT_NEEDED, FIXED, NOT_FIXABLE = b"012"


@dataclass(frozen=True)
class Repair:
    """A ``violation``, and in ``is_fixed`` whether the repair fixed it. An operator must fix the other violations."""

    violation: Violation
    is_fixed: bool

    def __str__(self) -> str:
        return f"{'fixed' if self.is_fixed else 'NOT FIXED'}: {self.violation}"


def repair(shards: Shards, now: float | None) -> Operation[list[Repair]]:
    done: list[Repair] = []

    def fix(shard: Commands, _: object) -> Operation[int]:
        some = yield from repair_shard(shard, now)
        done.extend(some)
        return len(some)

    steps = sum_over_shards(shards, fix, "repairs were made")
    yield from record_act(Act(shards.name, "repair", "queue"), steps, describe=lambda count: {"repairs": count})
    return done


def repair_shard(commands: Commands, now: float | None) -> Operation[list[Repair]]:
    """Check and fix until no violation is left that a program can fix, in at most twelve rounds."""
    done: dict[Violation, Repair] = {}
    for _ in range(MAX_REPAIR_ROUNDS):
        found = yield from check_shard(commands)
        # The script would fail at a key with a wrong type.
        if any(fault.invariant == WRONG_TYPE_INVARIANT for fault in found):
            done.update((fault, Repair(fault, is_fixed=False)) for fault in found if fault not in done)
            break
        waiting = [fault for fault in found if fault.fix and not (fault in done and not done[fault].is_fixed)]
        done.update((fault, Repair(fault, is_fixed=False)) for fault in found if not fault.fix)
        kinds = next((kinds for kinds in REPAIR_ORDER if any(fault.fix[0] in kinds for fault in waiting)), None)
        if kinds is None:
            break
        some = [fault for fault in waiting if fault.fix[0] in kinds]
        for part in slices(some, REPAIRS_PER_CALL):
            args = [len(part), *(encode_name(value) for fault in part for value in fault.fix)]
            codes = yield commands.call("repair", args, now)
            done.update(
                (fault, Repair(fault, is_fixed=code != NOT_FIXABLE)) for fault, code in zip(part, codes, strict=True)
            )
    return list(done.values())
