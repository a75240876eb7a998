"""Overview: how a queue is, at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import Bar, Bars, LineChart, Series
from django_fairque.admin.pages.base import AdminPage, NotHereError
from django_fairque.monitoring.formatting import duration, per_minute
from django_fairque.monitoring.report import top_users

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import QueueStats, WaitingTask
    from django_fairque.engine.statistics.timeline import Activity, Span

MINUTES_PER_POINT = {1: 1, 24: 15}
"""Hours that can be shown, and minutes of which each point of a chart is made."""
REFRESH_SECONDS = {1: 5, 24: 60}
"""Seconds. A day is 1,440 reads."""
USERS_COMPARED = 150
"""Users, at most: each is a read."""
USERS_PER_TABLE = 10
"""Users, in each table."""
RATE_MIN_SECONDS = 15
"""Seconds from which on a span that is still going on says something of its rate."""


@dataclass(frozen=True)
class LongestWait:
    """A user, when its longest wait began (seconds since the epoch), and how long it is."""

    user_id: str
    since: float
    seconds: float


class OverviewPage(AdminPage):
    """Tiles, charts, start deadlines, users, server."""

    name = "overview"
    path = "overview/"
    title: ClassVar[StrOrPromise] = _("Overview")
    permission = "view_queue"
    template = "admin/django_fairque/overview.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        hours = self._hours()
        stats, activity = queue.get_stats(0), queue.get_activity(60 * hours, MINUTES_PER_POINT[hours])
        longest_waits = longest(queue.longest_waits(), activity.spans[-1])
        top = top_users(queue, stats, USERS_PER_TABLE, USERS_COMPARED)
        return {
            "stats": stats,
            "health": queue.health(),
            "hours": hours,
            "choices": [
                (each, self._hours_label(each), self.url(self.name, hours=str(each))) for each in MINUTES_PER_POINT
            ],
            "refresh": REFRESH_SECONDS[hours],
            "tiles": [(title, count, self.link(page, **query)) for title, count, page, query in tiles(stats)],
            "throughput": throughput(activity),
            "waits": waits(activity),
            "priorities": [
                (name, count, activity.wait_by_priority.get(name)) for name, count in reversed(stats.depth.items())
            ],
            "activity": activity,
            "late": sum(span.violated for span in activity.spans),
            "moved": sum(span.promoted for span in activity.spans),
            "top": top,
            "busiest": busiest(top.sizes, lambda user_id: self.link("users", user=user_id)),
            # What the counters say is of few that were looked at: a table below that knows more is not contradicted.
            "oldest": max(stats.oldest_wait_seconds, *(each.seconds for each in longest_waits), 0.0),
            "longest": longest_waits,
        }

    def _hours(self) -> int:
        requested = self.request.GET.get("hours", "1")
        if requested not in map(str, MINUTES_PER_POINT):
            raise NotHereError(gettext("hours must be 1 or 24, got %(hours)s.") % {"hours": requested})
        return int(requested)

    @staticmethod
    def _hours_label(hours: int) -> str:
        return ngettext("last hour", "last %(hours)d hours", hours) % {"hours": hours}


def tiles(stats: QueueStats) -> list[tuple[str, int, str, dict[str, str]]]:
    """What there is now, in words and numbers, and the page and its query that say which."""
    states = stats.states
    return [
        (gettext("Queued"), states["queued"], "tasks", {"state": "queued"}),
        (gettext("Running"), states["started"], "tasks", {"state": "started"}),
        (gettext("Scheduled"), states["scheduled"], "tasks", {"state": "scheduled"}),
        (gettext("Deferred"), states["deferred"], "tasks", {"state": "deferred"}),
        (gettext("Dead letters"), states["failed"], "dead_letters", {}),
        (gettext("Workers"), stats.workers, "workers", {}),
    ]


def throughput(activity: Activity) -> LineChart:
    """How many tasks came and ended, by the minute."""
    spans = activity.spans
    return LineChart(
        "throughput",
        gettext("Tasks a minute"),
        [span.begin for span in spans],
        [
            Series(gettext("Pushed"), [_rate(span, span.pushed) for span in spans]),
            Series(gettext("Finished"), [_rate(span, span.finished) for span in spans]),
            Series(gettext("Failed attempts"), [_rate(span, span.failed) for span in spans]),
        ],
        per_minute,
    )


def waits(activity: Activity) -> LineChart:
    """How long attempts that ended had waited for their start; a gap where none ended."""
    spans = activity.spans
    return LineChart(
        "waits",
        gettext("Wait for a start"),
        [span.begin for span in spans],
        [
            Series(gettext("Half waited no longer (p50)"), [span.wait.p50 or None for span in spans]),
            Series(gettext("95 % waited no longer (p95)"), [span.wait.p95 or None for span in spans]),
        ],
        duration,
    )


def busiest(sizes: dict[str, Any], url: Callable[[str], str] = lambda user_id: "") -> Bars:  # noqa: ARG005
    """Users by what they have ready."""
    bars = [Bar(user_id, size.ready, url=url(user_id)) for user_id, size in sizes.items() if size.ready]
    return Bars(gettext("Users with most tasks ready"), gettext("User"), bars, gettext("Ready"))


def longest(found: list[WaitingTask], latest: Span) -> list[LongestWait]:
    """Users by their longest wait, as long as it is by the server's clock, on which the latest span ends."""
    now, first = latest.begin + latest.seconds - 1, {each.user_id: each.since for each in reversed(found)}
    ranked = sorted(first.items(), key=itemgetter(1))[:USERS_PER_TABLE]
    return [LongestWait(user_id, since, max(0.0, now - since)) for user_id, since in ranked]


def _rate(span: Span, count: int) -> float:
    return count * 60 / max(RATE_MIN_SECONDS, span.seconds)
