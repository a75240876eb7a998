"""Bounded maintenance, and pausing a whole queue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.checker import WRONG_TYPE_INVARIANT, check_invariants
from django_fairque.engine.maintenance.invariants.snapshot import bytes_of
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import Read, slices
from django_fairque.engine.sharding.shards import sum_over_shards

if TYPE_CHECKING:
    from django_fairque.engine.maintenance.invariants.snapshot import Violation
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class Sweep:
    """What one bounded round of maintenance did; ``more`` means that it should be called again at once. Moments are
    Unix times.

    These are numbers of tasks: ``due`` became ready, ``reaped`` lost a lease that had ended, ``expired`` became dead
    letters because they had not started in time, ``overdue`` missed their SLA while they waited, ``at_risk`` soon
    will, ``promoted`` moved up a class after a long wait, ``forgotten`` had ended long ago, ``dropped`` were in a
    registry without belonging there. ``freed`` is the number of users whose rate allows another task.

    ``alerts`` wait to be fetched; ``look_at`` is when the next thing is due, ``schedule_at`` the next schedule;
    ``messages`` wait to be carried to other shards. ``now`` is the server's time.
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


def sweep(shards: Shards, now: float | None) -> Operation[Sweep]:
    whole: Sweep | None = None
    for shard in shards:
        one = yield from sweep_shard(shard, now)
        whole = one if whole is None else _together(whole, one)
    assert whole is not None  # noqa: S101 - a queue has a shard
    return whole


def _together(left: Sweep, right: Sweep) -> Sweep:
    counted = (
        "due",
        "reaped",
        "expired",
        "overdue",
        "freed",
        "forgotten",
        "dropped",
        "at_risk",
        "promoted",
        "alerts",
        "messages",
    )
    return replace(
        left,
        more=left.more or right.more,
        now=max(left.now, right.now),
        **{name: getattr(left, name) + getattr(right, name) for name in counted},
        look_at=_earlier(left.look_at, right.look_at),
        schedule_at=_earlier(left.schedule_at, right.schedule_at),
    )


def _earlier(left: float | None, right: float | None) -> float | None:
    return min((each for each in (left, right) if each is not None), default=None)


def sweep_shard(commands: Commands, now: float | None = None) -> Operation[Sweep]:
    reply = [int(float(value)) for value in (yield commands.call("sweep", [], now))]
    (
        due,
        reaped,
        expired,
        overdue,
        freed,
        forgotten,
        dropped,
        more,
        look,
        at,
        at_risk,
        promoted,
        alerts,
        schedule,
        messages,
    ) = reply
    return Sweep(
        *(due, reaped, expired, overdue, freed, forgotten, dropped, bool(more), _moment(look), at / 1_000_000),
        *(at_risk, promoted, alerts, _moment(schedule), messages),
    )


def _moment(us: int) -> float | None:
    return None if us >= NEVER_MICROSECONDS else us / 1_000_000


def set_paused(shards: Shards, now: float | None, *, paused: bool) -> Operation[None]:
    """The shards that can be reached, then `ShardsAwayError` for the others."""
    for shard in shards:
        yield from set_shard_paused(shard, now, paused=paused)
    shards.check_present(f"{'paused' if paused else 'resumed'} without some")


def set_shard_paused(commands: Commands, now: float | None, *, paused: bool) -> Operation[None]:
    yield commands.call("pause", [int(paused)], now)


def is_paused(commands: Commands) -> Operation[bool]:
    (value,) = yield Read([("HGET", commands.keys("stats"), "paused")])
    return bool(value == b"1")


MAX_REPAIR_ROUNDS = 12
REPAIRS_PER_CALL = 100
REPAIR_ORDER = (
    ("task", "index", "queue", "lease", "run", "key", "mirror", "watchers"),
    ("edge",),
    ("user", "stat"),
    ("place", "member"),
    ("group",),
    ("standing",),
    ("sum",),
)
"""What must be right before the next can be judged: tasks, then edges between them, then sums, then who is served, and of
organizations the same again."""
FIX_NOT_NEEDED, FIXED, NOT_FIXABLE = b"012"


@dataclass(frozen=True)
class Repair:
    """A ``violation``, and in ``is_fixed`` whether it was fixed. A person must fix the others."""

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

    yield from sum_over_shards(shards, fix, "repairs were made")
    return done


def repair_shard(commands: Commands, now: float | None) -> Operation[list[Repair]]:
    """Check and fix until nothing is left that a program can fix, at most twelve rounds."""
    done: dict[Violation, Repair] = {}
    for _ in range(MAX_REPAIR_ROUNDS):
        found = yield from check_invariants(commands)
        if any(
            each.invariant == WRONG_TYPE_INVARIANT for each in found
        ):  # the script could read neither it nor around it
            done.update((each, Repair(each, is_fixed=False)) for each in found if each not in done)
            break
        waiting = [each for each in found if each.fix and not (each in done and not done[each].is_fixed)]
        done.update((each, Repair(each, is_fixed=False)) for each in found if not each.fix)
        kinds = next((kinds for kinds in REPAIR_ORDER if any(each.fix[0] in kinds for each in waiting)), None)
        if kinds is None:
            break
        some = [each for each in waiting if each.fix[0] in kinds]
        for part in slices(some, REPAIRS_PER_CALL):
            args = [len(part), *(bytes_of(value) for each in part for value in each.fix)]
            codes = yield commands.call("repair", args, now)
            done.update(
                (each, Repair(each, is_fixed=code != NOT_FIXABLE)) for each, code in zip(part, codes, strict=True)
            )
    return list(done.values())
