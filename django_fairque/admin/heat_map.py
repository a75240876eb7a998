"""The heat map of waits: a row for each of the users who waited longest, a column for each half hour of the last day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django_fairque.monitoring.formatting import duration

if TYPE_CHECKING:
    from django_fairque.engine.statistics.wait_history import WaitHistory

HEAT_SECONDS = (1, 10, 60, 600, 3600)
"""Seconds from which each color stands for a wait; admin.css has a class for each."""
HEAT_ROWS = 15
"""Users that have a row."""
USERS_PER_FIGURE = 3
"""Users that the table names for each half hour."""


@dataclass(frozen=True)
class HeatRow:
    """One row. ``recorded`` is the SVG path of the half hours with a record, ``paths`` are the class and the path of each color.

    An empty ``user_id`` stands for the median of all who waited.
    """

    user_id: str
    longest: int
    recorded: str
    paths: Sequence[tuple[str, str]]


def draw_heat_map(history: WaitHistory) -> dict[str, Any]:
    """The variables of the template ``heat_map.html``; ``heat_rows`` is empty if nobody waited."""
    users = history.users[:HEAT_ROWS]
    rows = [_row("", history.medians), *(_row(user.user_id, user.waits) for user in users)] if users else []
    return {
        "heat_rows": rows,
        "heat_width": len(history.begins),
        "heat_begin": history.begins[0],
        "heat_levels": [(f"fq-heat-{level}", duration(seconds)) for level, seconds in enumerate(HEAT_SECONDS, 1)],
        "heat_figures": _figures(history),
        "heat_left_out": max(0, len(history.users) - HEAT_ROWS),
    }


def _row(user_id: str, waits: Sequence[int | None]) -> HeatRow:
    paths: dict[str, str] = {}
    recorded, at = "", 0
    for level, run in groupby(waits, _level):
        width = sum(1 for _half_hour in run)
        box = f"M{at} 0h{width}v1h-{width}z"
        at += width
        if level is not None:
            recorded += box
        if level:
            paths[f"fq-heat-{level}"] = paths.get(f"fq-heat-{level}", "") + box
    return HeatRow(
        user_id, max((wait for wait in waits if wait is not None), default=0), recorded, sorted(paths.items())
    )


def _level(wait: int | None) -> int | None:
    """Return the number of the color; 0 for a wait below all limits of `HEAT_SECONDS`."""
    return None if wait is None else sum(wait >= seconds for seconds in HEAT_SECONDS)


def _figures(history: WaitHistory) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """List the half hours in which users waited, the latest first: begin, median wait, and the longest waits by user."""
    waited: list[list[tuple[str, int]]] = [[] for _begin in history.begins]
    for user in history.users:
        for some, wait in zip(waited, user.waits, strict=True):
            if wait:
                some.append((user.user_id, wait))
    figures = [
        (begin, middle or 0, sorted(some, key=lambda item: -item[1])[:USERS_PER_FIGURE])
        for begin, middle, some in zip(history.begins, history.medians, waited, strict=True)
        if some
    ]
    return figures[::-1]
