"""The table that is printed: a figure, its spread, and what it should reach."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Figure:
    """One measured figure: all its values, and the unit in which they are."""

    name: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "median": self.median, "values": self.values}


class Table:
    """The figures of one part. ``details`` has facts on which the figures depend, such as versions of the peers."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.figures: list[Figure] = []
        self.details: dict[str, Any] = {}
        self._rows: list[tuple[str, str, str, str]] = []

    def add(self, what: str, values: float | Sequence[float], unit: str = "", target: str = "") -> float:
        """Add a row with the median of ``values``, and return it."""
        several = [float(values)] if isinstance(values, (int, float)) else [float(value) for value in values]
        figure = Figure(
            what.strip() if not what.startswith(" ") else f"{self._last_main()}: {what.strip()}", unit, several
        )
        self.figures.append(figure)
        median = figure.median
        spread = f"{format_number(min(several))} – {format_number(max(several))}" if len(several) > 1 else ""
        self._rows.append((what, f"{format_number(median)} {unit}".strip(), spread, target))
        return median

    def _last_main(self) -> str:
        """The figure to which indented rows belong."""
        return next((row[0] for row in reversed(self._rows) if not row[0].startswith(" ")), self.title)

    def row(self, what: str, figure: str, spread: str = "", target: str = "") -> None:
        """Add a row as it stands."""
        self._rows.append((what, figure, spread, target))

    def print(self) -> None:
        header = (f"{self.title} (load {os.getloadavg()[0]:.1f})", "median", "spread", "target")
        widths = [max(len(row[i]) for row in [header, *self._rows]) for i in range(4)]
        for row in (header, tuple("-" * width for width in widths), *self._rows):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        print(flush=True)


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
