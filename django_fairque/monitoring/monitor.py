"""`StatsMonitor` checks rules about a queue's figures, and sends an alert when a figure exceeds its limit or is below
it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError, short, suggestion
from django_fairque.safely import get_logger

from .announcements import report_changes
from .formatting import duration, number, share
from .report import with_figures_of_users

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import QueueStats

logger = get_logger("django_fairque.monitoring")

FAILURE_SHARE_MINUTES = 5
"""Minutes over which shares and recent counts are calculated."""


CONFIGURED_RULE_SECONDS = 60.0
"""Seconds for which a figure must exceed a limit of the configuration before an alert is sent."""


@dataclass(frozen=True)
class Metric:
    """A figure that a rule watches: how to read its value, its format, and its name in a sentence."""

    value: Callable[[QueueStats], float]
    written: Callable[[float], str]
    what: str


def _failure_share(stats: QueueStats) -> float:
    minutes = stats.minutes[-FAILURE_SHARE_MINUTES:]
    failed, ended = sum(minute.failed for minute in minutes), sum(minute.failed + minute.finished for minute in minutes)
    return failed / ended if ended else 0.0


METRICS: Mapping[str, Metric] = {
    "depth": Metric(lambda stats: sum(stats.depth.values()), number, "ready tasks"),
    "oldest_wait": Metric(lambda stats: stats.oldest_wait_seconds, duration, "longest wait"),
    "wait_p95": Metric(lambda stats: stats.wait.p95, duration, "wait (p95 of the last hour)"),
    "run_p95": Metric(lambda stats: stats.run.p95, duration, "run time (p95 of the last hour)"),
    "failure_share": Metric(_failure_share, share, f"failed attempts of the last {FAILURE_SHARE_MINUTES} minutes"),
    "dead": Metric(lambda stats: sum(stats.dead.values()), number, "dead letters"),
    "deferred": Metric(lambda stats: stats.dependencies.deferred, number, "tasks that wait for others"),
    "sla_violated": Metric(
        lambda stats: sum(minute.violated for minute in stats.minutes[-FAILURE_SHARE_MINUTES:]),
        number,
        f"tasks started too late in the last {FAILURE_SHARE_MINUTES} minutes",
    ),
    "idle_backlog": Metric(
        lambda stats: stats.users_ready + stats.due if not stats.workers and not stats.paused else 0,
        number,
        "users and due tasks that wait while no worker lives",
    ),
}


@dataclass(frozen=True)
class AlertRule:
    """A rule: ``metric`` (one of `METRICS`) must not exceed ``over`` for longer than ``for_seconds``.

    ``name`` distinguishes several rules about one metric; the default is the metric's name.
    """

    metric: str
    over: float
    for_seconds: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ConfigurationError(f"there is no metric {self.metric!r}; {suggestion(self.metric, METRICS)}")
        for name, value in (("over", self.over), ("for_seconds", self.for_seconds)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigurationError(
                    f"{name} of the rule about {self.metric} must be a number of at least 0, got {short(value)}"
                )
        object.__setattr__(self, "name", self.name or self.metric)


@dataclass(frozen=True)
class MonitorAlert:
    """An alert: a rule is now broken (``raised``), or is no longer broken (``cleared``). ``since`` is the time at which
    the figure exceeded the limit.
    """

    state: str
    rule: AlertRule
    queue: str
    value: float
    since: float

    def __str__(self) -> str:
        return f"queue {self.queue}: {self.figure}"

    @property
    def figure(self) -> str:
        """The figure and its limit as text."""
        metric = METRICS[self.rule.metric]
        value, limit = metric.written(self.value), metric.written(self.rule.over)
        return (
            f"{metric.what} back to {value} (limit {limit})"
            if self.state == "cleared"
            else f"{metric.what} {value}, over {limit}"
        )


class StatsMonitor:
    """Checks a queue's figures each time `check` is called, and reports each change of a rule's state once.

    While figures of some shards are missing, a figure that exceeded its limit does not count as below the limit again.

    Args:
        rules: the rules to check; by default the rules of the configuration (``MONITOR``).
        on_alert: called with each `MonitorAlert`. By default, alerts open and close incidents (``queue.incidents``),
            which are logged, mailed and sent to the configured webhook, once for all monitors of the queue. An error in
            the function is logged, and does not prevent later calls.
    """

    def __init__(
        self,
        queue: FairQueue,
        rules: Sequence[AlertRule] | None = None,
        on_alert: Callable[[MonitorAlert], object] | None = None,
    ) -> None:
        self._queue = queue
        self.rules = tuple(_load_configured_rules() if rules is None else rules)
        self._on_alert = on_alert
        self._closed: set[AlertRule] = set()
        self._since: dict[AlertRule, float] = {}
        self._raised: set[AlertRule] = set()

    def check(self, stats: QueueStats | None = None, *, now: float | None = None) -> list[MonitorAlert]:
        """Check the rules, and return the changes since the last check. ``now`` is by default the time of this
        machine's clock.

        Raises:
            RedisConnectionError: the server can't be reached; the state of each rule stays unchanged.
        """
        figures = self._queue.get_stats() if stats is None else stats
        if any(rule.metric == "oldest_wait" for rule in self.rules):
            figures = with_figures_of_users(self._queue, figures)
        moment = time.time() if now is None else now
        changes = [change for rule in self.rules if (change := self._evaluate(rule, figures, moment))]
        if self._on_alert is None:
            self._report(changes)
            return changes
        for change in changes:
            try:
                self._on_alert(change)
            except Exception:  # noqa: PERF203 - the others are still reported
                logger.exception("on_alert failed for: %s", change)
        return changes

    def _report(self, changes: Sequence[MonitorAlert]) -> None:
        """Open and close incidents. An incident may also be left from an earlier process, although its rule is no
        longer broken.
        """
        incidents, messages = self._queue.incidents, []
        for change in changes:
            if change.state == "raised":
                messages += incidents.open_limit(change.rule.name, change.figure)
                self._closed.discard(change.rule)
        for rule in self.rules:
            if rule not in self._since and rule not in self._closed:
                messages += incidents.close_limit(rule.name)
                self._closed.add(rule)
        report_changes(messages)

    @property
    def raised(self) -> list[AlertRule]:
        """The rules that were broken at the last check."""
        return [rule for rule in self.rules if rule in self._raised]

    def _evaluate(self, rule: AlertRule, stats: QueueStats, now: float) -> MonitorAlert | None:
        value = METRICS[rule.metric].value(stats)
        if value <= rule.over:
            if stats.missing_shards and rule in self._since:
                return None  # the incident may have ended on a shard that can't be reached now
            since = self._since.pop(rule, now)
            if rule in self._raised:
                self._raised.discard(rule)
                return MonitorAlert("cleared", rule, stats.queue, value, since)
            return None
        since = self._since.setdefault(rule, now)
        if rule in self._raised or now - since < rule.for_seconds:
            return None
        self._raised.add(rule)
        return MonitorAlert("raised", rule, stats.queue, value, since)


def exceeded_limits(queue: FairQueue, stats: QueueStats | None = None) -> list[str]:
    """Return a sentence for each figure that currently exceeds its configured limit, regardless of ``for_seconds``."""
    rules = [AlertRule(rule.metric, rule.over) for rule in _load_configured_rules()]
    if not rules:
        return []
    return [str(alert) for alert in StatsMonitor(queue, rules, on_alert=lambda _: None).check(stats)]


def close_recovered(queue: FairQueue) -> None:
    """Close the incidents that are over, and send the messages about them. Incidents of configured limits are closed if
    no figure exceeds the limit any more.
    """
    changes, rules = queue.incidents.update(), _load_configured_rules()
    stats = queue.get_stats() if rules else None
    if stats and "oldest_wait" in {rule.metric for rule in rules}:
        stats = with_figures_of_users(queue, stats)
    for rule in rules:
        if stats and not stats.missing_shards and METRICS[rule.metric].value(stats) <= rule.over:
            changes += queue.incidents.close_limit(rule.name)
    report_changes(changes)


def _load_configured_rules() -> list[AlertRule]:
    limits = get_config().monitor.limits
    return [AlertRule(name, limits[name], CONFIGURED_RULE_SECONDS) for name in METRICS if name in limits]
