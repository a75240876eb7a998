"""Formats figures with their units, for people."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from django_fairque.engine.model.errors import short

_TIMES = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"), (0.000001, "µs"))
_RATES = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def duration(seconds: float) -> str:
    """Format a time in seconds: ``0.00123`` -> ``1.23 ms``, ``73`` -> ``1 min 13 s``. Below a minute the text has three
    digits, otherwise the two largest units.
    """
    if not 59.95 <= abs(seconds) < math.inf:
        return _scale(seconds, _TIMES) or "0 s"
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    (large, small), length = ("min", "s"), 60
    if whole >= 3600:
        (large, small), whole = ("h", "min"), round(whole / 60)
    if large == "h" and whole >= 24 * 60:
        (large, small), length, whole = ("d", "h"), 24, round(whole / 60)
    first, second = divmod(whole, length)
    return f"{sign}{first:,} {large} {second} {small}" if second else f"{sign}{first:,} {large}"


def rounded_time(seconds: float) -> float:
    """Round a time in seconds that is known only approximately, such as a histogram's percentile: ``37.9`` -> ``40``,
    ``73`` -> ``60``.

    One or two digits remain. The rounding error is smaller than the error of the percentile.
    """
    if not 0 < seconds < math.inf:
        return seconds
    unit = next((unit for unit, _name in _TIMES if seconds >= unit), _TIMES[-1][0])
    value = seconds / unit
    power = 10.0 ** math.floor(math.log10(value))
    step = 0.5 * power if (unit >= 60 and value < 10) or value >= 2 * power else 0.1 * power
    return round(value / step) * step * unit


def age(seconds: float) -> str:
    """Format an age in its largest unit: ``4000`` -> ``1 h``."""
    unit, name = next(((unit, name) for unit, name in _TIMES[:4] if seconds >= unit), (1.0, "s"))
    return f"{seconds // unit:,.0f} {name}"


def approximate(seconds: float) -> str:
    """Format an estimated time: ``252`` -> ``4 min``. The text has whole units, or half units if there are fewer than
    five.
    """
    unit = next((unit for unit, _name in _TIMES if seconds >= unit), _TIMES[-1][0])
    step = unit if seconds >= 5 * unit else unit / 2
    return duration(round(seconds / step) * step)


def pluralize(count: int, one: str, many: str = "") -> str:
    """Format a number of things in English, for commands and logs: ``1 task``, ``1,234 tasks``. ``many`` is the plural;
    by default ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size(number: float) -> str:
    """Format a number of bytes: ``2048`` -> ``2 KiB``."""
    return _scale(number, _SIZES) or f"{number:.0f} B"


def number(value: float) -> str:
    """Format a number with separators: ``1234567`` -> ``1,234,567``."""
    return f"{value:,.0f}"


def rate(per_second: float) -> str:
    """Format a rate per second: ``0.5`` -> ``30 /min``, ``1200`` -> ``1,200 /s``. The unit is the shortest one in which
    the rate is at least one.
    """
    for length, unit in _RATES:
        if per_second * length >= 1:
            return f"{_digits(per_second * length)} /{unit}"
    return f"{_digits(per_second * 86_400)} /d" if per_second else "0 /s"


def per_minute(value: float) -> str:
    """Format a rate per minute: ``0.25`` -> ``0.25 /min``. The unit is always the same, so the texts fit a scale."""
    return f"{_digits(value)} /min"


def share(fraction: float) -> str:
    """Format a fraction as a percentage: ``0.123`` -> ``12.3 %``, ``0.00004`` -> ``<0.01 %``."""
    return "<0.01 %" if 0 < fraction < 0.0001 else f"{_digits(fraction * 100)} %"


def _scale(value: float, units: Iterable[tuple[float, str]]) -> str:
    """Format the value in the largest unit that it reaches; return an empty text if it reaches no unit."""
    return next((f"{_digits(value / unit)} {name}" for unit, name in units if abs(value) >= unit), "")


def _digits(value: float) -> str:
    """Format a number with three significant digits, and a number from 100 on as a whole number, such as ``12,345``."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < value < 0.001:
        return "<0.001"  # exponents such as 1e-05 are hard to read
    return f"{value:.3g}"


def plain(text: str) -> str:
    """Make text from users safe for a terminal: one line, without control characters that a terminal would execute."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Heading(str):
    """The first row of a table, which commands print in bold."""

    __slots__ = ()


def table(rows: list[tuple[str, ...]], align: str = ">") -> list[str]:
    """Return lines with aligned columns. The first row is the heading. The first column is aligned to the left, the
    other columns to the right, or according to ``align``, a sign of format strings.
    """
    rows = [tuple(map(plain, cells)) for cells in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        right = (f"{cell:{align}{width}}" for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([f"{first:<{widths[0]}}", *right]).rstrip())
    return [Heading(lines[0]), *lines[1:]]


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_age(text: str) -> float:
    """Parse ``90s``, ``10m``, ``2h`` or ``7d`` into seconds.

    Raises:
        ValueError: the text has another form; the message describes the right one.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise ValueError(f"expected an age such as 90s, 10m, 2h or 7d, got {short(text)}")
    return float(match[1]) * UNITS[match[2]]
