"""The table that tells how long each user waited, and would have waited. Knows no Django."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from django_fairque.monitoring.first_come import ServedTask, replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LEAST = 0.001
"""Seconds: shorter waits are not told apart."""


@dataclass(frozen=True)
class Waits:
    """How long the same tasks waited, really and first come, first served; seconds."""

    user: str
    fair: tuple[float, ...]
    fcfs: tuple[float, ...]

    @property
    def tasks(self) -> int:
        return len(self.fair)

    @property
    def gain(self) -> float:
        """How many times longer the median would have been."""
        return max(LEAST, median(self.fcfs)) / max(LEAST, median(self.fair))


def waits_by_user(runs: Sequence[ServedTask], slots: int) -> list[Waits]:
    """Those with the most tasks first."""
    opened = min((run.started for run in runs), default=0.0)
    fair: dict[str, list[float]] = {}
    fcfs: dict[str, list[float]] = {}
    for run, would_wait in replay(runs, slots, opened):
        fair.setdefault(run.user, []).append(run.waited)
        fcfs.setdefault(run.user, []).append(would_wait)
    found = [Waits(user, tuple(fair[user]), tuple(fcfs[user])) for user in fair]
    return sorted(found, key=lambda waits: (-waits.tasks, waits.user))


HEADINGS = ("user", "tasks", "median wait", "longest", "median FCFS", "longest", "FCFS / fair")


def table(users: Iterable[Waits]) -> Iterator[str]:
    rows = [HEADINGS, *map(row, users)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, cells in enumerate(rows):
        first, *others = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  ".join([f"{cells[0]:<{len(first)}}", *others])
        if index == 0:
            yield "  ".join("-" * width for width in widths)


def row(waits: Waits) -> tuple[str, ...]:
    seen = [median(waits.fair), max(waits.fair), median(waits.fcfs), max(waits.fcfs)]
    return (waits.user, f"{waits.tasks:,}", *map(duration, seen), f"{times(waits.gain)} ×")


def summary(users: Sequence[Waits]) -> str:
    """One sentence about the half of the users with the fewest tasks."""
    limit = int(median(waits.tasks for waits in users))
    small = [waits for waits in users if waits.tasks <= limit]
    fair = [wait for waits in small for wait in waits.fair]
    fcfs = [wait for waits in small for wait in waits.fcfs]
    together = Waits("", tuple(fair), tuple(fcfs))
    whose = (
        f"The {len(small)} users with at most {plural(limit, 'task')} each"
        if len(small) > 1
        else f"User {small[0].user}"
    )
    return (
        f"{whose} waited {duration(median(fair))} (median) instead of {duration(median(fcfs))} "
        f"first come, first served,\nwhich is {times(together.gain)} times as long."
    )


def duration(seconds: float) -> str:
    if seconds < LEAST:
        return "< 1 ms"
    # Rounded first: 999.6 ms are a second.
    return f"{seconds * 1000:.0f} ms" if round(seconds, 3) < 1 else f"{seconds:.1f} s"


def times(factor: float) -> str:
    return f"{factor:.1f}" if round(factor, 1) < 10 else f"{factor:,.0f}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{ending if count != 1 else ''}"
