"""Bounded maintenance, and pausing a whole queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.scripting.commands import NEVER, Commands
from django_fairque.engine.scripting.operations import Read

if TYPE_CHECKING:
    from django_fairque.engine.scripting.operations import Steps


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


def sweep(commands: Commands, now: float | None = None) -> Steps[Sweep]:
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
    return None if us >= NEVER else us / 1_000_000


def set_paused(commands: Commands, now: float | None, *, paused: bool) -> Steps[None]:
    yield commands.call("pause", [int(paused)], now)


def is_paused(commands: Commands) -> Steps[bool]:
    (value,) = yield Read([("HGET", commands.keys("stats"), "paused")])
    return bool(value == b"1")
