"""Bounded maintenance, and pausing a whole queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .commands import NEVER, Commands
from .steps import Read

if TYPE_CHECKING:
    from .steps import Steps


@dataclass(frozen=True)
class Sweep:
    """What one bounded maintenance did; ``more`` says to call it again at once."""

    promoted: int
    reaped: int
    expired: int
    overdue: int
    freed: int
    forgotten: int
    dropped: int
    more: bool
    look_at: float | None
    now: float


def sweep(commands: Commands, now: float | None = None) -> Steps[Sweep]:
    reply = [int(value) for value in (yield commands.call("sweep", [], now))]
    look = None if reply[8] >= NEVER else reply[8] / 1_000_000
    promoted, reaped, expired, overdue, freed, forgotten, dropped = reply[:7]
    more = bool(reply[7])
    return Sweep(promoted, reaped, expired, overdue, freed, forgotten, dropped, more, look, reply[9] / 1_000_000)


def set_paused(commands: Commands, now: float | None, *, paused: bool) -> Steps[None]:
    yield commands.call("pause", [int(paused)], now)


def is_paused(commands: Commands) -> Steps[bool]:
    (value,) = yield Read([("HGET", commands.keys("stats"), "paused")])
    return bool(value == b"1")
