"""The expected runs of schedules in the next 24 hours, on a time axis and in tables, with overlapping runs and
overloads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import AdminPage
from django_fairque.admin.pages.schedules import SCHEDULES_PER_PAGE, in_words, zone_of
from django_fairque.engine.schedules.forecast import FORECAST_HOURS, merge_runs

if TYPE_CHECKING:
    from django_fairque.engine.schedules.forecast import Collision, Forecast, PlannedRun, ScheduleForecast

    Span = tuple[float, float]

MAX_MARKS = 1000
"""Maximum number of runs that a page draws one by one."""
COLLISIONS_SHOWN = 50
NAMES_SHOWN = 10
HOURS_PER_TICK = 3
LAST_LABEL_PERCENT = 92.0
"""Rightmost position of a label in percent. A label further to the right would be cut off."""


class UpcomingPage(AdminPage):
    """A page with a row for each schedule, sorted by the next run. ``?start=`` is the number of schedules before
    the first row, 0 by default."""

    name = "upcoming"
    title = gettext_lazy("Next 24 hours")
    permission = "view_schedule"

    def template_context(self) -> dict[str, Any]:
        found = self.queue.schedules.upcoming(FORECAST_HOURS)
        text = self.request.GET.get("start", "")
        start = int(text) if text.isdecimal() and len(text) < 5 else 0
        shown = found.schedules[start : start + SCHEDULES_PER_PAGE]
        following = start + SCHEDULES_PER_PAGE
        ticks = list(_ticks(found))
        overlaps: dict[str, list[Span]] = {}
        for span in found.overlaps:
            for name in span.names:
                overlaps.setdefault(name, []).append((span.begin, span.end))
        return {
            "forecast": found,
            "rows": [
                self._row(found, plan, runs, overlaps.get(plan.schedule.name, []))
                for plan, runs in zip(shown, _limit_marks(shown), strict=True)
            ],
            "overload_marks": _draw(found, [(span.begin, span.end) for span in found.overloads], 1, 8),
            "scheduled": sum(count for _, count in found.scheduled),
            "scheduled_marks": _draw_counts(found),
            "ticks": [(f"{percent:g}", label) for percent, label in ticks if percent < LAST_LABEL_PERCENT],
            "grid": "".join(f"M{_x(found, found.begin, percent)} 0v10" for percent, _ in ticks),
            "kinds": [(kind, _shorten(kind)) for kind in (found.overlaps, found.overloads)],
            "hours": _list_by_hour(found),
            "zone": timezone.get_current_timezone_name(),
            "refresh": 30,
            **self.build_page_links(str(following) if len(found.schedules) > following else None, "start"),
        }

    def _row(
        self, found: Forecast, plan: ScheduleForecast, runs: Sequence[PlannedRun], overlaps: Sequence[Span]
    ) -> dict[str, Any]:
        name = plan.schedule.name
        own = [(run.begin, run.end) for run in plan.runs if run.count == 1]
        zone = zone_of(plan.schedule)
        is_other_zone = plan.first is not None and (
            datetime.fromtimestamp(plan.first, zone).utcoffset() != _local(plan.first).utcoffset()
        )
        return {
            "plan": plan,
            "url": self.url("schedules", runs=name),
            "when": in_words(plan.schedule),
            "zone": zone if is_other_zone else None,
            "marks": _draw(found, [(run.begin, run.end) for run in runs if run.count == 1], 1, 5),
            "bands": _draw(found, [(run.begin, run.end) for run in runs if run.count > 1], 1, 5),
            "overlap_marks": _draw(found, _intersect(own, overlaps), 7, 3),
            "overlaps": len(overlaps),
            "is_running": any(run.is_running for run in plan.runs),
        }


def _limit_marks(plans: Sequence[ScheduleForecast]) -> list[Sequence[PlannedRun]]:
    """Return the runs of each schedule that are drawn. If a page has too many runs, adjacent runs of the schedules with
    most runs are merged.
    """
    found: list[Sequence[PlannedRun]] = [plan.runs for plan in plans]
    left = MAX_MARKS - len(found)  # at least one run of each schedule is drawn
    for index in sorted(range(len(found)), key=lambda index: len(found[index])):
        if len(found[index]) > left + 1:
            runs = plans[index].runs
            found[index] = merge_runs([run.begin for run in runs], runs[-1].end - runs[-1].begin)
        left -= max(0, len(found[index]) - 1)
    return found


def _intersect(first: Sequence[Span], second: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans of time that are contained in spans of both lists. Each list is sorted, and spans of ``second``
    do not overlap.
    """
    for begin, end in first:
        for other_begin, other_end in second:
            if other_begin >= end:
                break
            if other_end > begin:
                yield max(begin, other_begin), min(end, other_end)


def _x(found: Forecast, moment: float, percent: float = 0.0) -> str:
    """Return the x coordinate of a time on the axis, which is 1440 wide, moved to the right by ``percent`` of the
    width.
    """
    length = found.end - found.begin
    return f"{min(max(moment - found.begin, 0), length) / length * 1440 + percent * 14.4:.1f}"


def _draw(found: Forecast, spans: Iterable[Span], top: float, height: float) -> str:
    """Return the SVG path of boxes for these spans, in a row that is 10 high."""
    return "".join(
        f"M{_x(found, begin)} {top:g}H{_x(found, end)}v{height:g}H{_x(found, begin)}z" for begin, end in spans
    )


def _draw_counts(found: Forecast) -> str:
    """Return the SVG path of bars whose heights are the numbers of scheduled tasks."""
    most = max((count for _, count in found.scheduled), default=0)
    ends = [*(begin for begin, _ in found.scheduled[1:]), found.end]
    paths = (
        _draw(found, [(begin, end)], 10 - 9 * count / most, 9 * count / most)
        for (begin, count), end in zip(found.scheduled, ends, strict=True)
        if count
    )
    return "".join(paths)


def _local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, timezone.get_current_timezone())


def _ticks(found: Forecast) -> Iterator[tuple[float, str]]:
    """Yield every third full hour in the page's time zone: its position from 0 to 100, and its label."""
    for edge, _ in found.scheduled[1:]:
        at = edge + -_local(edge).minute % 60 * 60  # the offset of a time zone from UTC may contain half an hour
        hour = _local(at).hour
        if hour % HOURS_PER_TICK == 0 and at < found.end:
            yield round((at - found.begin) / (found.end - found.begin) * 100, 2), f"{hour:02}:00"


def _shorten(collisions: Sequence[Collision]) -> list[tuple[Collision, Sequence[str], int]]:
    """Return the first overlaps, each with the schedule names that are shown and the number of the other schedules."""
    return [
        (span, span.names[:NAMES_SHOWN], max(0, len(span.names) - NAMES_SHOWN))
        for span in collisions[:COLLISIONS_SHOWN]
    ]


def _list_by_hour(found: Forecast) -> list[dict[str, Any]]:
    """Return a row for each hour: the number of scheduled tasks, and the first runs that begin in this hour with the
    number of further runs.
    """
    edges = [begin for begin, _ in found.scheduled]
    begun: list[list[tuple[float, str, int]]] = [[] for _ in found.scheduled]
    for plan in found.schedules:
        for run in plan.runs:
            if not run.is_running:
                begun[bisect_right(edges, run.begin) - 1].append((run.begin, plan.schedule.name, run.count))
    return [
        {
            "begin": begin,
            "scheduled": count,
            "runs": [(f"{_local(at):%H:%M}", name, count) for at, name, count in sorted(runs)[:NAMES_SHOWN]],
            "left_out": max(0, len(runs) - NAMES_SHOWN),
        }
        for (begin, count), runs in zip(found.scheduled, begun, strict=True)
    ]
