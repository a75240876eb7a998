"""The overview of a queue."""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.template.defaultfilters import date
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_fairque.admin.charts import LineChart, draw_charts, printable
from django_fairque.admin.pages.base import Action, AdminPage, NotHereError, lane_rows
from django_fairque.admin.pages.users import PAGE_USERS_EXAMINED, paused_users_context, wait_text
from django_fairque.conf import get_config
from django_fairque.engine.model.lanes import CLASS_NAMES
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics import queue_stats
from django_fairque.engine.statistics.queue_stats import TREND_MINUTES
from django_fairque.engine.statistics.releases import compare_releases
from django_fairque.engine.users import fairness as user_fairness
from django_fairque.integrations.webhook import send_test_alert
from django_fairque.monitoring.formatting import duration, per_minute, share
from django_fairque.monitoring.report import longest_wait, refine_trend, trend_words
from django_fairque.monitoring.wait_explanations import pause_details

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, Span
    from django_fairque.engine.statistics.releases import ReleaseComparison

MINUTES_PER_POINT = {1: 1, 6: 5, 24: 15, 168: 60}
"""The periods in hours that a chart can show, with the minutes for each point of the chart."""
REFRESH_SECONDS = {1: 5, 6: 15, 24: 60, 168: 60}
"""Seconds between two refreshes, by the period in hours. A period of a day needs 1,440 reads."""
USERS_PER_TABLE = 10
"""Rows of each table of users."""
WORSE_SHOWN = 5
"""Sentences about tasks that a release made worse."""
RATE_MIN_SECONDS = 15
"""Minimum seconds of the current span for which a rate is calculated."""


class OverviewPage(AdminPage):
    """The overview page: tiles with counts, charts, start deadlines, users, and the server."""

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
            lambda shards: user_fairness.fairness(shards, PAGE_USERS_EXAMINED, ()),
        ]
        if is_compared := bool(queue.config.release and self.may("view_task")):
            reads.append(compare_releases)
        stats, activity, fairness, *compared = read_in_lockstep([(queue, read) for read in reads])
        worse = [comparison for comparison in compared[0] if comparison.is_worse] if is_compared else []
        longest = [user for user in fairness.examined if user.since is not None]
        busiest = sorted(
            (user for user in fairness.examined if user.can_start), key=lambda user: (-user.can_start, user.user_id)
        )[:USERS_PER_TABLE]
        oldest = longest_wait(stats, fairness.examined)
        trend, paused = refine_trend(stats, fairness.examined)
        charts = _charts(activity, sum(stats.depth.values()), oldest)
        return {
            "stats": stats,
            "pause_details": pause_details(stats.pause),
            "health": self.status.readings.get(self.queue_name),
            "hours": requested,
            "choices": self.build_hour_links(MINUTES_PER_POINT),
            "refresh": REFRESH_SECONDS[hours],
            "tiles": self._tiles(stats),
            "worse": [text for comparison in worse for text in describe_release(comparison)][:WORSE_SHOWN],
            "more_worse": max(0, len(worse) - WORSE_SHOWN),
            "trend": trend_words(trend, gettext),
            "paused_tasks": paused,
            "is_growing": trend is not None and trend.seconds_left is None,
            "paused": paused_users_context(fairness),
            **draw_charts(charts, [span.begin for span in activity.spans], stats.deployments),
            "priorities": [
                (name, stats.depth.get(name, 0), activity.wait_by_priority.get(name))
                for name in reversed(CLASS_NAMES.values())
                if name in stats.depth or name in activity.wait_by_priority
            ],
            "lanes": lane_rows(stats.lanes, activity.wait_by_lane),
            "activity": activity,
            "late": sum(span.violated for span in activity.spans),
            "moved": sum(span.promoted for span in activity.spans),
            "sla_by_priority": [item for item in stats.sla.by_priority.items() if any(astuple(item[1]))],
            "fairness": fairness,
            "examined": len(fairness.examined) if len(fairness.examined) < fairness.users else 0,
            "busiest": busiest,
            "oldest": oldest,
            "longest": [(user, wait_text(user.held_by)) for user in longest[:USERS_PER_TABLE]],
            "has_webhook": get_config().monitor.webhook is not None,
        }

    @Action("change_queue")
    def test_alert(self) -> str:
        send_test_alert(self.queue_name)
        return gettext("The webhook has accepted a test alert.")

    def _tiles(self, stats: QueueStats) -> list[tuple[str, int, str]]:
        """Return the tiles with the current counts: title, number, and the URL of a page with details."""
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


def describe_release(comparison: ReleaseComparison) -> Iterator[str]:
    """Yield a sentence for each figure that is worse, in the reader's language."""
    before, now, since = comparison.before, comparison.now, comparison.since
    at = datetime.fromtimestamp(since.first_at, timezone.get_current_timezone())
    facts = {
        "name": printable(comparison.name),
        "release": printable(since.release),
        "time": date(at, "H:i" if at.date() == timezone.localdate() else "Y-m-d H:i"),
    }
    if comparison.is_slower:
        text = gettext("%(name)s about %(ratio)s times slower since %(release)s (%(time)s): %(now)s, before %(before)s")
        figures = {"now": duration(now.median), "before": duration(before.median), "ratio": f"{comparison.ratio:,.1f}"}
        yield text % {**facts, **figures}
    if comparison.fails_more:
        text = gettext("%(name)s fails more since %(release)s (%(time)s): %(now)s of its attempts, before %(before)s")
        yield text % {**facts, "now": share(now.failed_share), "before": share(before.failed_share)}


def _charts(activity: Activity, ready: int, oldest: float) -> list[LineChart]:
    """Return the charts of a queue. The line of the backlog ends with ``ready`` tasks, the line of the oldest wait with
    ``oldest`` seconds.

    Workers record the oldest wait. For times in which no worker ran and no task started, it is calculated from the task
    that now waits longest. A gap in percentiles means that no attempt ended. Failures have their own axis, because
    there are few failures compared with all tasks.
    """
    spans, gap_text = activity.spans, gettext("Gaps: no data was recorded.")

    def rates(name: str) -> list[float]:
        return [getattr(span, name) * 60 / max(RATE_MIN_SECONDS, span.seconds) for span in spans]

    since = spans[-1].begin + spans[-1].seconds - oldest

    def oldest_wait(span: Span) -> float | None:
        end = span.begin + span.seconds
        if span.oldest_wait is None and oldest and end > since and not span.wait.count:
            return end - since
        return span.oldest_wait

    waits = {
        gettext("Oldest wait"): [*map(oldest_wait, spans[:-1]), oldest],
        gettext("Half waited no longer (p50)"): [span.wait.p50 or None for span in spans],
        gettext("95 % waited no longer (p95)"): [span.wait.p95 or None for span in spans],
    }
    run_times: dict[str, list[float | None]]
    if any(span.mean_run is not None for span in spans):
        run_times = {gettext("Average"): [span.mean_run for span in spans]}
    else:
        run_times = {
            gettext("Half ran no longer (p50)"): [span.run.p50 or None for span in spans],
            gettext("19 of 20 ran no longer (p95)"): [span.run.p95 or None for span in spans],
        }
    has_changed = any(span.pushed or span.finished or span.failed or span.ready is not None for span in spans)
    backlog = [*(span.ready for span in spans[:-1]), ready] if has_changed else [ready] * len(spans)
    tasks = {gettext("Pushed"): rates("pushed"), gettext("Finished"): rates("finished")}
    failures = {gettext("Failed attempts"): rates("failed"), gettext("New dead letters"): rates("dead")}
    return [
        LineChart(gettext("Backlog"), {gettext("Queued"): backlog}, gap_text=gap_text),
        LineChart(gettext("Wait for a start"), waits, duration, gap_text),
        LineChart(gettext("Tasks a minute"), tasks, per_minute),
        LineChart(gettext("Failures a minute"), failures, per_minute),
        LineChart(gettext("Run time"), run_times, duration),
    ]
