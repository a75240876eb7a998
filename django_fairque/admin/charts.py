"""Prepares line charts and strips. A line chart consists of a sentence for each line, the data that ``charts.js``
draws, and one table of all values. A strip is a row of colored boxes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import mark_safe
from django.utils.translation import gettext

from django_fairque.monitoring import formatting

if TYPE_CHECKING:
    from django_fairque.engine.statistics.deployments import Deployment

SECONDS_WITHOUT_DATE = 86_400
"""Maximum length in seconds of a chart that shows only times of day. A longer chart shows dates too."""
LARGEST_VALUE = 1e15
"""Maximum value that is drawn. Larger and negative values come from damaged records, and are left out."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_LONG_STEPS = tuple(float(minutes * 60) for minutes in (1, 2, 4, 10, 20, 30, 60, 120, 240, 480, 720, 1440))


@dataclass
class LineChart:
    """A chart with several lines over the same times. ``lines`` contains the values by the line's label; None for a
    time without a value.
    """

    title: str
    lines: Mapping[str, Sequence[float | None]]
    say: Callable[[float], str] = formatting.number
    """Formats a value with its unit."""
    gap_text: str = ""
    """Explains times without a value in the first line; empty if no explanation is necessary."""

    def __post_init__(self) -> None:
        self.lines = {
            label: [value if value is not None and 0 <= value <= LARGEST_VALUE else None for value in values]
            for label, values in self.lines.items()
        }

    @property
    def sentences(self) -> list[str]:
        """The legend of the chart: a sentence for each line."""
        return [describe_line(label, values, self.say) for label, values in self.lines.items()]

    @property
    def gaps(self) -> str:
        return self.gap_text if None in next(iter(self.lines.values())) else ""

    @property
    def columns(self) -> list[list[str]]:
        """The values of each line as text."""
        columns = []
        for values in self.lines.values():
            texts = {value: "–" if value is None else self.say(value) for value in set(values)}
            columns.append([texts[value] for value in values])
        return columns

    @property
    def data(self) -> dict[str, Any]:
        """The data for the script: the lines, and the labels of the vertical axis."""
        most = max((value for values in self.lines.values() for value in values if value is not None), default=0.0)
        top = find_round_maximum(most, is_time=self.say is formatting.duration)
        levels = [(top * part, self.say(top * part)) for part in (0.0, 0.5, 1.0)]
        return {"levels": levels, "lines": [{"label": label, "values": values} for label, values in self.lines.items()]}


def draw_charts(
    charts: Sequence[LineChart], times: Sequence[float], deployments: Sequence[Deployment]
) -> dict[str, Any]:
    """Return the variables of the template ``charts.html``.

    Args:
        charts: the charts. Their lines have a value for each time.
        times: times in seconds since the epoch, at least one.
        deployments: the known deployments. Only those after the first time are marked.
    """
    zone, first, last = timezone.get_current_timezone(), times[0], times[-1]
    is_dated = last - first > SECONDS_WITHOUT_DATE

    def write_time(at: float, form: str) -> str:
        return datetime.fromtimestamp(at, zone).strftime(form)

    marks = []
    for deployment in deployments:
        if deployment.at >= first:
            moment = write_time(deployment.at, "%m-%d %H:%M" if is_dated else "%H:%M")
            facts = {"version": printable(deployment.code_version), "time": moment}
            marks.append((min(deployment.at, last), gettext("deployment %(version)s, %(time)s") % facts))
    moments = [write_time(at, "%Y-%m-%d %H:%M") for at in times]
    rows = zip(moments, *(column for chart in charts for column in chart.columns), strict=True)
    data = {
        "times": list(times),
        "zone": timezone.get_current_timezone_name(),
        "dated": is_dated,
        "marks": marks,
        "charts": [chart.data for chart in charts],
    }
    return {
        "charts": charts,
        "chart_data": json.dumps(data),
        "chart_marks": [text for _at, text in marks],
        "chart_rows": mark_safe("".join(map(_table_row, reversed(list(rows))))),  # noqa: S308 - rows are escaped
        "chart_zone": data["zone"],
    }


def _table_row(cells: Sequence[str]) -> str:
    """Return a table row. All its cells are escaped at once, because pages with charts are refreshed every few seconds
    and have hundreds of cells.
    """
    moment, *texts = escape("\t".join(cells)).split("\t")
    figures = '</td><td class="fq-number">'.join(texts)
    return f'<tr><th scope="row"><time>{moment}</time></th><td class="fq-number">{figures}</td></tr>\n'


def describe_line(label: str, values: Sequence[float | None], say: Callable[[float], str]) -> str:
    """Return a sentence with the largest value and the latest value of a line."""
    known = [value for value in values if value is not None]
    if not known:
        return gettext("%(label)s: nothing") % {"label": label}
    facts = {"label": label, "most": say(max(known)), "latest": say(known[-1])}
    return gettext("%(label)s: at most %(most)s, %(latest)s at last") % facts


def find_round_maximum(value: float, *, is_time: bool = False) -> float:
    """Return the next round number whose half is also round: 1, 2, 4 or 10 times a power of ten. For a long time the
    number is a round number of minutes.
    """
    if value <= 0:
        return 1.0
    if is_time and 40 < value <= _LONG_STEPS[-1]:
        return next(step for step in _LONG_STEPS if step >= value)
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * digit for digit in (1.0, 2.0, 4.0) if power * digit >= value), power * 10.0)


def draw_strip(classes: Sequence[str], begin: int = 0) -> list[tuple[str, str]]:
    """Return the CSS class and the SVG path for each color in a row of boxes. A box is 1 wide and 1 high.

    A box with an empty class is a gap.
    """
    paths: dict[str, str] = {}
    for css_class, boxes in groupby(classes):
        width = len(list(boxes))
        if css_class:
            paths[css_class] = f"{paths.get(css_class, '')}M{begin} 0h{width}v1h-{width}z"
        begin += width
    return sorted(paths.items())


def printable(label: str) -> str:
    """Replace characters that XML forbids, and shorten the label to 60 characters."""
    text = _UNPRINTABLE.sub("\ufffd", label)
    return text if len(text) <= 60 else f"{text[:59]}…"
