"""Bounded maintenance, and pausing a whole queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.checker import WRONG_TYPE_INVARIANT, check_invariants
from django_fairque.engine.maintenance.invariants.snapshot import bytes_of
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import Read

if TYPE_CHECKING:
    from django_fairque.engine.maintenance.invariants.snapshot import Violation
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation


@dataclass(frozen=True)
class Sweep:
    """What one bounded maintenance did; ``more`` says to call it again at once.

    ``alerts`` wait to be fetched; ``look_at`` is when the next thing is due, ``schedule_at`` the next schedule;
    ``messages`` wait to be carried to other shards.
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


def sweep(commands: Commands, now: float | None = None) -> Operation[Sweep]:
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


def set_paused(commands: Commands, now: float | None, *, paused: bool) -> Operation[None]:
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
    """A violation and whether it was fixed. A person must fix the others."""

    violation: Violation
    is_fixed: bool

    def __str__(self) -> str:
        return f"{'fixed' if self.is_fixed else 'NOT FIXED'}: {self.violation}"


def repair(commands: Commands, now: float | None) -> Operation[list[Repair]]:
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
        for first in range(0, len(some), REPAIRS_PER_CALL):
            part = some[first : first + REPAIRS_PER_CALL]
            args = [len(part), *(bytes_of(value) for each in part for value in each.fix)]
            codes = yield commands.call("repair", args, now)
            done.update(
                (each, Repair(each, is_fixed=code != NOT_FIXABLE)) for each, code in zip(part, codes, strict=True)
            )
    return list(done.values())
