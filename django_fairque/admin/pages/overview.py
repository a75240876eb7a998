"""Overview: how a queue is, at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import Bar, Bars, LineChart, Series
from django_fairque.admin.pages.base import Action, AdminPage, NotHereError
from django_fairque.admin.pages.users import USERS_EXAMINED, wait_text
from django_fairque.conf import get_config
from django_fairque.monitoring.formatting import duration, per_minute
from django_fairque.webhook import send_test_alert

if TYPE_CHECKING:
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, Span

MINUTES_PER_POINT = {1: 1, 24: 15}
"""Hours that can be shown, and minutes of which each point of a chart is made."""
REFRESH_SECONDS = {1: 5, 24: 60}
"""Seconds. A day is 1,440 reads."""
USERS_PER_TABLE = 10
"""Users, in each table."""
RATE_MIN_SECONDS = 15
"""Seconds from which on a span that is still going on says something of its rate."""


class OverviewPage(AdminPage):
    """Tiles, charts, start deadlines, users, server."""

    name = "overview"
    title = _("Overview")
    permission = "view_queue"

    def template_context(self) -> dict[str, Any]:
        requested, queue = self.request.GET.get("hours", "1"), self.queue
        if requested not in map(str, MINUTES_PER_POINT):
            raise NotHereError(gettext("hours must be 1 or 24, got %(hours)s.") % {"hours": requested})
        hours = int(requested)
        stats, activity = queue.get_stats(0), queue.get_activity(60 * hours, MINUTES_PER_POINT[hours])
        fairness = queue.fairness(USERS_EXAMINED)
        longest = [each for each in fairness.examined if each.since is not None]
        busiest = sorted(longest, key=lambda each: (-each.ready, each.user_id))[:USERS_PER_TABLE]
        bars = [Bar(each.user_id, each.ready, url=self.link("users", user=each.user_id)) for each in busiest]
        choices = {each: ngettext("last hour", "last %(hours)d hours", each) for each in MINUTES_PER_POINT}
        return {
            "stats": stats,
            "health": self.status.readings.get(self.queue_name),
            "hours": hours,
            "choices": [
                (each, text % {"hours": each}, self.url(self.name, hours=str(each))) for each, text in choices.items()
            ],
            "refresh": REFRESH_SECONDS[hours],
            "tiles": self._tiles(stats),
            "throughput": throughput(activity),
            "waits": waits(activity),
            "priorities": [
                (name, count, activity.wait_by_priority.get(name)) for name, count in reversed(stats.depth.items())
            ],
            "activity": activity,
            "late": sum(span.violated for span in activity.spans),
            "moved": sum(span.promoted for span in activity.spans),
            "fairness": fairness,
            "examined": len(fairness.examined) if len(fairness.examined) < fairness.users else 0,
            "busiest": Bars(gettext("Users with most tasks ready"), gettext("User"), bars, gettext("Ready")),
            # What the counters say is of few that were looked at: a table below that knows more is not contradicted.
            "oldest": max([stats.oldest_wait_seconds, *(each.wait_seconds for each in longest if each.waiting)]),
            "longest": [(each, wait_text(each.held_by)) for each in longest[:USERS_PER_TABLE]],
            "has_webhook": get_config().monitor.webhook is not None,
        }

    @Action("change_queue")
    def test_alert(self) -> str:
        send_test_alert(self.queue_name)
        return gettext("The webhook has accepted a test alert.")

    def _tiles(self, stats: QueueStats) -> list[tuple[str, int, str]]:
        """What there is now, in words and numbers, and the URL of the page that says which."""
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


def throughput(activity: Activity) -> LineChart:
    """How many tasks came and ended, by the minute."""
    spans = activity.spans
    counts = {gettext("Pushed"): "pushed", gettext("Finished"): "finished", gettext("Failed attempts"): "failed"}
    series = [Series(label, [_rate(span, getattr(span, name)) for span in spans]) for label, name in counts.items()]
    return LineChart("throughput", gettext("Tasks a minute"), [span.begin for span in spans], series, per_minute)


def waits(activity: Activity) -> LineChart:
    """How long attempts that ended had waited for their start; a gap where none ended."""
    spans = activity.spans
    series = [
        Series(gettext("Half waited no longer (p50)"), [span.wait.p50 or None for span in spans]),
        Series(gettext("95 % waited no longer (p95)"), [span.wait.p95 or None for span in spans]),
    ]
    return LineChart("waits", gettext("Wait for a start"), [span.begin for span in spans], series, duration)


def _rate(span: Span, count: int) -> float:
    return count * 60 / max(RATE_MIN_SECONDS, span.seconds)
