"""Charts as numbers and sentences: where each line, bar and label goes. The templates named ``chart_*.html`` draw them.

Every position is a string, because templates write numbers the way a language does ("1.234,5") and SVG knows only one way.
Across, positions are of `CHART_WIDTH`; labels are put at percentages next to the stretched lines, so that text keeps its size on
every screen.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.translation import gettext

from django_fairque.monitoring import formatting

if TYPE_CHECKING:
    from django_fairque.engine.statistics.deployments import Deployment

CHART_WIDTH, CHART_HEIGHT = 1000, 100
SPARKLINE_MARGIN = 6
"""Units above and below the lines of a sparkline, because strokes have a width."""
SECONDS_WITHOUT_DATE = 86_400
"""Seconds: a chart of a longer time has dates below it."""
LARGEST_DRAWN_VALUE = 1e15
"""Larger values are drawn as this value."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LONG_STEPS = tuple(float(minutes * 60) for minutes in (1, 2, 4, 10, 20, 30, 60, 120, 240, 480, 720, 1440))


@dataclass(frozen=True)
class Series:
    """One line: a value for each moment, None where there is none."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class LineChart:
    """Several lines over one time. ``times`` are seconds since the epoch, ``name`` is unique on the page."""

    name: str
    title: str
    times: Sequence[float]
    series: Sequence[Series]
    say: Callable[[float], str] = formatting.number
    """Writes a value with its unit."""
    gap_text: str = ""
    """The explanation of moments without a value in the first series; empty if none is needed."""
    deployments: Sequence[Deployment] = ()
    """Deployments of any time; only the ones in the chart's time are drawn."""

    @property
    def gaps(self) -> str:
        """The sentence about moments without a value; empty if there are none, or if they need none."""
        has_gaps = bool(self.series) and any(_clamp(value) is None for value in self.series[0].values)
        return self.gap_text if has_gaps else ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(_all_known(series.values) for series in self.series)

    @property
    def top(self) -> float:
        """The value of the upper edge."""
        most = max((value for series in self.series for value in _all_known(series.values)), default=0.0)
        return find_round_maximum(most, is_time=self.say is formatting.duration)

    @property
    def data(self) -> str:
        """The data that the script ``charts.js`` draws, as JSON."""
        values = [list(map(_clamp, series.values)) for series in self.series]
        series = [
            {
                "label": printable(series.label),
                "values": known,
                "texts": [None if value is None else self.say(value) for value in known],
            }
            for series, known in zip(self.series, values, strict=True)
        ]
        top = self.top
        return json.dumps(
            {
                "times": list(self.times),
                "zone": timezone.get_current_timezone_name(),
                "dated": self._is_dated,
                "top": top,
                "levels": [(top * part, self.say(top * part)) for part in (0.0, 0.5, 1.0)],
                "marks": [(self._clip(deployment.at), text) for deployment, text in self.drawn_deployments],
                "series": series,
            }
        )

    @property
    def _is_dated(self) -> bool:
        return bool(self.times) and self.times[-1] - self.times[0] > SECONDS_WITHOUT_DATE

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        """The label, the CSS class and the path of each series."""
        top = self.top
        return [
            (printable(series.label), f"fq-line-{number}", path(series.values, top))
            for number, series in enumerate(self.series, 1)
        ]

    @property
    def levels(self) -> list[tuple[str, str]]:
        """Height of each horizontal line (``0`` is the upper edge), and its label."""
        top = self.top
        return [(_trim(CHART_HEIGHT * (1 - part)), self.say(top * part)) for part in (1.0, 0.5, 0.0)]

    @property
    def drawn_deployments(self) -> list[tuple[Deployment, str]]:
        """The deployments in the chart's time, the oldest first, each with its text."""
        form = "%m-%d %H:%M" if self._is_dated else "%H:%M"
        some = [deployment for deployment in self.deployments if self.times and deployment.at >= self.times[0]]
        facts = [
            {"version": printable(deployment.code_version), "time": _clock(deployment.at, form)} for deployment in some
        ]
        return [
            (deployment, gettext("deployment %(version)s, %(time)s") % fact)
            for deployment, fact in zip(some, facts, strict=True)
        ]

    @property
    def marks(self) -> list[tuple[str, str]]:
        """The position and the text of each drawn deployment. At the right edge, the position leaves room for the whole line."""
        first, last = (self.times[0], self.times[-1]) if self.times else (0.0, 0.0)
        return [
            (_trim(min(CHART_WIDTH - 2, CHART_WIDTH * (self._clip(deployment.at) - first) / (last - first or 1))), text)
            for deployment, text in self.drawn_deployments
        ]

    def _clip(self, at: float) -> float:
        """Move a moment after the begin of the last span to the right edge."""
        return min(at, self.times[-1])

    @property
    def moments(self) -> list[tuple[str, str, str]]:
        """The labels below the chart: position (in percent), anchor and text."""
        last = len(self.times) - 1
        form = "%m-%d %H:%M" if self._is_dated else "%H:%M"
        if last < 0:
            return []
        if last == 0:
            return [("50%", "middle", _clock(self.times[0], form))]
        parts = [(0.0, "start"), (0.5, "middle"), (1.0, "end")]
        return [
            (f"{_trim(100 * part)}%", anchor, _clock(self.times[round(last * part)], form)) for part, anchor in parts
        ]

    @property
    def description(self) -> str:
        """A sentence for screen readers that describes the lines."""
        if self.is_empty:
            return gettext("Nothing happened in this time.")
        return "; ".join(map(self._describe_series, self.series))

    def _describe_series(self, series: Series) -> str:
        values, label = _all_known(series.values), printable(series.label)
        if not values:
            return gettext("%(label)s: nothing") % {"label": label}
        facts = {"label": label, "most": self.say(max(values)), "latest": self.say(values[-1])}
        return gettext("%(label)s: at most %(most)s, %(latest)s at last") % facts

    @property
    def rows(self) -> list[tuple[float, list[str | None]]]:
        """The figures as a table, the latest first: a moment, and the text of each series (None for no value)."""
        known = [list(map(_clamp, series.values)) for series in self.series]
        texts = [[None if value is None else self.say(value) for value in values] for values in known]
        table = list(zip(self.times, zip(*texts, strict=True), strict=True)) if texts else []
        return [(when, list(values)) for when, values in reversed(table)]


@dataclass(frozen=True)
class Sparkline:
    """One small line without axes."""

    title: str
    values: Sequence[float | None]
    say: Callable[[float], str] = formatting.number

    @property
    def path(self) -> str:
        return path(self.values, max(_all_known(self.values), default=0.0), SPARKLINE_MARGIN)

    @property
    def description(self) -> str:
        known = _all_known(self.values)
        if not known:
            return gettext("Nothing happened in this time.")
        facts = {"most": self.say(max(known)), "latest": self.say(known[-1])}
        return gettext("at most %(most)s, %(latest)s at last") % facts


@dataclass(frozen=True)
class Bar:
    """A value with its label."""

    label: str
    value: float
    url: str = ""


@dataclass(frozen=True)
class Bars:
    """Values side by side. The table around them shows the same values as text."""

    title: str
    what: str
    """The kind of things that the labels name, such as "User"."""
    bars: Sequence[Bar]
    value_title: str = ""
    say: Callable[[float], str] = formatting.number

    @property
    def drawn(self) -> list[dict[str, str]]:
        """The bars as they are drawn; ``width`` is of `CHART_WIDTH`."""
        values = [_clamp(bar.value) or 0.0 for bar in self.bars]
        full, labels = max(values, default=0.0) or 1.0, [printable(bar.label) for bar in self.bars]
        return [
            {
                "label": label,
                "url": bar.url,
                "width": _trim(CHART_WIDTH * value / full),
                "value": self.say(value),
                "description": gettext("%(label)s: %(value)s") % {"label": label, "value": self.say(value)},
            }
            for bar, label, value in zip(self.bars, labels, values, strict=True)
        ]


def path(values: Sequence[float | None], top: float, margin: float = 0.0) -> str:
    """The ``d`` of a line, with a gap for each None; a value between two gaps is a dot."""
    step = CHART_WIDTH / max(1, len(values) - 1)
    start = 0.0 if len(values) > 1 else CHART_WIDTH / 2
    room = CHART_HEIGHT - 2 * margin

    def points() -> Iterator[tuple[bool, str]]:
        for index, value in enumerate(map(_clamp, values)):
            height = min(1.0, (value or 0.0) / top) if top else 0.0
            yield value is not None, f"{_trim(start + index * step)} {_trim(CHART_HEIGHT - margin - room * height)}"

    runs = ([point for _, point in run] for is_known, run in groupby(points(), key=itemgetter(0)) if is_known)
    return " ".join(f"M{run[0]}" + ("".join(f"L{point}" for point in run[1:]) or "h0") for run in runs)


def find_round_maximum(value: float, *, is_time: bool = False) -> float:
    """The next round number, so that its half is round too: 1, 2, 4 or 10 times a power of ten; of long times, minutes."""
    if value <= 0:
        return 1.0
    if is_time and 40 < value <= _LONG_STEPS[-1]:
        return next(step for step in _LONG_STEPS if step >= value)
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * digit for digit in (1.0, 2.0, 4.0) if power * digit >= value), power * 10.0)


def printable(label: str) -> str:
    """Replace characters that XML forbids, and shorten the label to 60 characters."""
    text = _UNPRINTABLE.sub("\ufffd", label)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _clamp(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return min(max(0.0, value), LARGEST_DRAWN_VALUE)


def _all_known(values: Sequence[float | None]) -> list[float]:
    return [known for value in values if (known := _clamp(value)) is not None]


def _trim(position: float) -> str:
    return f"{position:.2f}".rstrip("0").rstrip(".")


def _clock(seconds: float, form: str) -> str:
    return f"{datetime.fromtimestamp(seconds, tz=timezone.get_current_timezone()):{form}}"
