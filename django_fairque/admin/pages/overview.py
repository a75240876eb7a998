"""The overview of a queue."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import Bar, Bars, LineChart, Series
from django_fairque.admin.pages.base import Action, AdminPage, NotHereError
from django_fairque.admin.pages.users import USERS_EXAMINED, wait_text
from django_fairque.conf import get_config
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics import queue_stats
from django_fairque.engine.statistics.queue_stats import TREND_MINUTES
from django_fairque.engine.users import fairness as user_fairness
from django_fairque.integrations.webhook import send_test_alert
from django_fairque.monitoring.formatting import duration, per_minute
from django_fairque.monitoring.report import trend_words
from django_fairque.monitoring.wait_explanations import pause_details

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, Span

MINUTES_PER_POINT = {1: 1, 6: 5, 24: 15, 168: 60}
"""The hours that a chart can show, with the minutes of each point."""
REFRESH_SECONDS = {1: 5, 6: 15, 24: 60, 168: 60}
"""Seconds. A day is 1,440 reads."""
USERS_PER_TABLE = 10
"""Rows of each table of users."""
RATE_MIN_SECONDS = 15
"""Seconds after which the current span is long enough to calculate a rate."""


class OverviewPage(AdminPage):
    """Tiles, charts, start deadlines, users, server."""

    name = "overview"
    title = _("Overview")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        requested, queue = self.request.GET.get("hours", "1"), self.queue
        if requested not in map(str, MINUTES_PER_POINT):
            raise NotHereError(gettext("hours must be 1, 6, 24 or 168, got %(hours)s.") % {"hours": requested})
        hours = int(requested)
        reads: list[Callable[[Shards], Operation[Any]]] = [
            lambda shards: queue_stats.stats(shards, TREND_MINUTES),
            lambda shards: queue_stats.activity(shards, 60 * hours, MINUTES_PER_POINT[hours]),
            lambda shards: user_fairness.fairness(shards, USERS_EXAMINED, ()),
        ]
        stats, activity, fairness = read_in_lockstep([(queue, read) for read in reads])
        longest = [user for user in fairness.examined if user.since is not None]
        busiest = sorted(longest, key=lambda user: (-user.ready, user.user_id))[:USERS_PER_TABLE]
        bars = [Bar(user.user_id, user.ready, url=self.link("users", user=user.user_id)) for user in busiest]
        choices = {hours: ngettext("last hour", "last %(hours)d hours", hours) for hours in MINUTES_PER_POINT}
        choices[168] = gettext("last 7 days")
        # The statistics examine only a few users. The table below may have found a longer wait: show the longer of
        # the two.
        oldest = max([stats.oldest_wait_seconds, *(user.wait_seconds for user in longest if user.waiting)])
        return {
            "stats": stats,
            "pause_details": pause_details(stats.pause),
            "health": self.status.readings.get(self.queue_name),
            "hours": hours,
            "choices": [
                (count, text % {"hours": count}, self.url(self.name, hours=str(count)))
                for count, text in choices.items()
            ],
            "refresh": REFRESH_SECONDS[hours],
            "tiles": self._tiles(stats),
            "trend": trend_words(stats.trend, gettext),
            "charts": _charts(activity, stats, oldest),
            "priorities": [
                (name, count, activity.wait_by_priority.get(name)) for name, count in reversed(stats.depth.items())
            ],
            "activity": activity,
            "late": sum(span.violated for span in activity.spans),
            "moved": sum(span.promoted for span in activity.spans),
            "sla_by_priority": [item for item in stats.sla.by_priority.items() if any(astuple(item[1]))],
            "fairness": fairness,
            "examined": len(fairness.examined) if len(fairness.examined) < fairness.users else 0,
            "busiest": Bars(gettext("Users with most tasks ready"), gettext("User"), bars, gettext("Ready")),
            "oldest": oldest,
            "longest": [(user, wait_text(user.held_by)) for user in longest[:USERS_PER_TABLE]],
            "has_webhook": get_config().monitor.webhook is not None,
        }

    @Action("change_queue")
    def test_alert(self) -> str:
        send_test_alert(self.queue_name)
        return gettext("The webhook has accepted a test alert.")

    def _tiles(self, stats: QueueStats) -> list[tuple[str, int, str]]:
        """List the current counts: title, number, and the URL of the page with the details."""
        states = {
            "queued": gettext("Queued"),
            "started": gettext("Running"),
            "scheduled": gettext("Scheduled"),
            "deferred": gettext("Deferred"),
        }
        return [
            *((title, stats.states[state], self.link("tasks", state=state)) for state, title in states.items()),
            (gettext("Dead letters"), stats.states["failed"], self.link("dead_letters")),
            (gettext("Workers"), stats.workers, self.link("workers")),
        ]


def _charts(activity: Activity, stats: QueueStats, oldest: float) -> list[LineChart]:
    charts = [
        backlog(activity, sum(stats.depth.values())),
        waits(activity, oldest),
        throughput(activity),
        failures(activity),
        run_times(activity),
    ]
    return [replace(chart, deployments=stats.deployments) for chart in charts]


def throughput(activity: Activity) -> LineChart:
    """Return the chart of pushed and finished tasks a minute."""
    spans = activity.spans
    counts = {gettext("Pushed"): "pushed", gettext("Finished"): "finished"}
    series = [Series(label, [_rate(span, getattr(span, name)) for span in spans]) for label, name in counts.items()]
    return LineChart("throughput", gettext("Tasks a minute"), [span.begin for span in spans], series, per_minute)


def failures(activity: Activity) -> LineChart:
    """Return the chart of failed attempts and new dead letters a minute. The chart has its own axis, because failures are few
    next to all tasks."""
    spans = activity.spans
    counts = {gettext("Failed attempts"): "failed", gettext("New dead letters"): "dead"}
    series = [Series(label, [_rate(span, getattr(span, name)) for span in spans]) for label, name in counts.items()]
    return LineChart("failures", gettext("Failures a minute"), [span.begin for span in spans], series, per_minute)


def backlog(activity: Activity, ready: int) -> LineChart:
    """Return the chart of ready tasks, which ends with ``ready``. A gap means that no worker recorded the number."""
    series = [Series(gettext("Ready"), [*(span.ready for span in activity.spans[:-1]), ready])]
    times = [span.begin for span in activity.spans]
    return LineChart("backlog", gettext("Backlog"), times, series, gap_text=_gap_text())


def run_times(activity: Activity) -> LineChart:
    """Return the chart of the run times of attempts that ended. A gap means that no attempt ended."""
    spans = activity.spans
    if any(span.mean_run is not None for span in spans):
        series = [Series(gettext("Average"), [span.mean_run for span in spans])]
    else:
        series = [
            Series(gettext("Half ran no longer (p50)"), [span.run.p50 or None for span in spans]),
            Series(gettext("19 of 20 ran no longer (p95)"), [span.run.p95 or None for span in spans]),
        ]
    return LineChart("runs", gettext("Run time"), [span.begin for span in spans], series, duration)


def _gap_text() -> str:
    return gettext("Gaps: no data, because no worker ran.")


def waits(activity: Activity, oldest: float) -> LineChart:
    """Return the chart of waits.

    One line shows the wait of the oldest task that could start. The line ends with ``oldest`` (seconds); a gap means that no
    worker recorded the wait. The other lines show the time that ended attempts had waited for their start; a gap means that no
    attempt ended.
    """
    spans = activity.spans
    series = [
        Series(gettext("Oldest wait"), [*(span.oldest_wait for span in spans[:-1]), oldest]),
        Series(gettext("Half waited no longer (p50)"), [span.wait.p50 or None for span in spans]),
        Series(gettext("95 % waited no longer (p95)"), [span.wait.p95 or None for span in spans]),
    ]
    times, title = [span.begin for span in spans], gettext("Wait for a start")
    return LineChart("waits", title, times, series, duration, gap_text=_gap_text())


def _rate(span: Span, count: int) -> float:
    return count * 60 / max(RATE_MIN_SECONDS, span.seconds)
