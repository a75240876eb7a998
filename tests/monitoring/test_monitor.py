"""Rules about figures: a change is reported once; figures as people read them."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_fairque.conf import FairQueueConfig, get_queue
from django_fairque.conf.sections import LIMIT_NAMES
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.queue_stats import MinuteStats, QueueStats
from django_fairque.monitoring import formatting
from django_fairque.monitoring.monitor import METRICS, AlertRule, MonitorAlert, StatsMonitor, exceeded_limits
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "monitoring.md").read_text()


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def stats(queue: FairQueue) -> QueueStats:
    return queue.get_stats()


def test_each_change_of_a_rule_is_reported_once(queue: FairQueue, stats: QueueStats) -> None:
    reported: list[MonitorAlert] = []
    rule = AlertRule("depth", over=10, for_seconds=60)
    monitor = StatsMonitor(queue, [rule], reported.append)
    deep = replace(stats, depth={"NORMAL": 11})
    for now, figures in ((0, deep), (59, deep), (60, deep), (61, deep), (100, stats), (101, stats), (102, deep)):
        monitor.check(figures, now=now)
    assert [(alert.state, alert.value, alert.since) for alert in reported] == [("raised", 11, 0), ("cleared", 0, 0)]
    assert str(reported[0]) == "queue default: ready tasks 11, over 10"
    assert str(reported[1]) == "queue default: ready tasks back to 0 (limit 10)"
    assert monitor.raised == []


def test_a_value_that_comes_back_in_between_begins_anew(queue: FairQueue, stats: QueueStats) -> None:
    monitor = StatsMonitor(queue, [AlertRule("depth", 1, for_seconds=60)])
    deep = replace(stats, depth={"NORMAL": 2})
    for now, figures in ((0, deep), (50, stats), (55, deep), (114, deep)):
        assert monitor.check(figures, now=now) == []
    assert [alert.state for alert in monitor.check(deep, now=115)] == ["raised"]


def test_two_rules_about_one_figure_are_distinguished_by_name(queue: FairQueue, stats: QueueStats) -> None:
    monitor = StatsMonitor(queue, [AlertRule("depth", 1), AlertRule("depth", 9, name="page the one on duty")])
    deep, deeper = (replace(stats, depth={"NORMAL": depth}) for depth in (5, 10))
    assert [alert.rule.name for alert in monitor.check(deep, now=0)] == ["depth"]
    assert [alert.rule.name for alert in monitor.check(deeper, now=1)] == ["page the one on duty"]
    assert [(alert.rule.name, alert.state) for alert in monitor.check(deep, now=2)] == [
        ("page the one on duty", "cleared")
    ]


def test_a_failing_handler_is_logged_and_the_next_change_is_reported(
    queue: FairQueue, stats: QueueStats, caplog: pytest.LogCaptureFixture
) -> None:
    reported: list[str] = []

    def handler(alert: MonitorAlert) -> None:
        reported.append(alert.rule.name)
        if len(reported) == 1:
            raise RuntimeError("the pager is off")

    monitor = StatsMonitor(queue, [AlertRule("depth", 1), AlertRule("dead", 1)], handler)
    assert len(monitor.check(replace(stats, depth={"NORMAL": 5}, dead={"failed": 5}), now=0)) == 2
    assert reported == ["depth", "dead"]
    assert "on_alert failed for: queue default: ready tasks 5, over 1" in caplog.text
    assert "the pager is off" in caplog.text


def test_changes_are_logged_without_a_handler(
    queue: FairQueue, stats: QueueStats, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_fairque.worker")
    monitor = StatsMonitor(queue, [AlertRule("depth", 1)])
    monitor.check(replace(stats, depth={"NORMAL": 5}))
    (incident,) = queue.incidents.recent()
    monitor.check()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"queue default: incident {incident.id} opened: over the limit of depth: ready tasks 5, over 1"),
        ("INFO", f"queue default: incident {incident.id} recovered after 0 min: over the limit of depth: 1 alert"),
    ]


def test_monitors_of_two_processes_report_an_incident_once(
    queue: FairQueue, stats: QueueStats, caplog: pytest.LogCaptureFixture
) -> None:
    monitors = [StatsMonitor(queue, [AlertRule("depth", 1)]) for _ in range(2)]
    for monitor in monitors:
        monitor.check(replace(stats, depth={"NORMAL": 5}))
    assert caplog.text.count("opened") == 1
    StatsMonitor(queue, [AlertRule("depth", 1)]).check()  # the process after a restart
    assert [incident.is_open for incident in queue.incidents.recent()] == [False]


def test_a_server_that_is_away_clears_no_alert(make_server: MakeServer) -> None:
    server = make_server()
    queue = FairQueue(server.client(), config=QueueConfig(request_timeout=0))
    queue.push(Task.create("u", 3, None))
    monitor = StatsMonitor(queue, [AlertRule("depth", 0)])
    assert [alert.state for alert in monitor.check()] == ["raised"]
    server.kill()
    with pytest.raises(RedisConnectionError):
        monitor.check()
    assert [rule.metric for rule in monitor.raised] == ["depth"]


def minute(**numbers: Any) -> MinuteStats:
    return MinuteStats(**{"minute": 0, "pushed": 0, "finished": 0, "failed": 0, "dead": 0, **numbers})


@pytest.mark.parametrize(
    ("metric", "changes", "value"),
    [
        ("depth", {"depth": {"LOW": 2, "HIGH": 3}}, 5),
        ("oldest_wait", {"oldest_wait_seconds": 7.0}, 7),
        ("failure_share", {"minutes": [minute(failed=99), *[minute(failed=1, finished=3)] * 5]}, 0.25),
        ("failure_share", {"minutes": []}, 0),
        ("dead", {"dead": {"failed": 2, "expired": 1}}, 3),
        ("sla_violated", {"minutes": [minute(violated=9), *[minute(violated=2)] * 5]}, 10),
        ("idle_backlog", {"users_ready": 4, "workers": 0}, 4),
        ("idle_backlog", {"users_ready": 4, "workers": 0, "due": 3}, 7),
        ("idle_backlog", {"users_ready": 4, "workers": 1, "due": 3}, 0),
        ("idle_backlog", {"users_ready": 4, "workers": 0, "paused": True}, 0),
    ],
)
def test_a_figure_is_computed_from_stats(stats: QueueStats, metric: str, changes: dict[str, Any], value: float) -> None:
    assert METRICS[metric].value(replace(stats, **changes)) == value


def test_the_oldest_wait_of_a_rule_is_not_that_of_a_younger_task_that_is_checked_earlier(queue: FairQueue) -> None:
    queue.push(Task.create("old", 3, 1, sla=5), now=time.time() - 90)
    queue.sweep()
    queue.push(Task.create("young", 3, 1, sla=5))
    (found,) = StatsMonitor(queue, [AlertRule("oldest_wait", 60)], on_alert=lambda _: None).check()
    assert found.value >= 90


def test_configured_limits_are_part_of_the_health(queue: FairQueue, settings: Settings, server: Server) -> None:
    assert exceeded_limits(queue) == []
    queue.push(Task.create("u", 3, None))
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"LIMITS": {"IDLE_BACKLOG": 0, "DEPTH": 5}}}
    assert exceeded_limits(get_queue()) == [
        "queue default: users and due tasks that wait while no worker lives 1, over 0"
    ]
    assert {rule.for_seconds for rule in StatsMonitor(get_queue()).rules} == {60}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: AlertRule("dept", 1), "did you mean 'depth'"),
        (lambda: AlertRule("depth", math.nan), "over of the rule about depth must be a number of at least 0, got nan"),
        (lambda: AlertRule("depth", 1, for_seconds="60"), "for_seconds of the rule about depth"),  # type: ignore[arg-type]
        (lambda: AlertRule("depth", -1), "over of the rule about depth must be a number of at least 0, got -1"),
        (lambda: FairQueueConfig.model_validate({"monitor": {"limits": {"depht": 1}}}), "did you mean depth"),
        (
            lambda: FairQueueConfig.model_validate({"monitor": {"limits": {"failure_share": 2}}}),
            "a fraction from 0 to 1; got 2",
        ),
    ],
)
def test_a_mistake_in_a_rule_is_refused(made: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        made()


def test_every_limit_is_documented() -> None:
    for name in METRICS:
        assert f"`{name.upper()}`" in PAGE


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (formatting.duration(0.00123), "1.23 ms"),
        (formatting.approximate(0.2), "200 ms"),
        (formatting.approximate(1.3), "1.5 s"),
        (formatting.approximate(252), "4 min"),
        (formatting.approximate(3599), "1 h"),
        (formatting.approximate(40_000), "11 h"),
        (formatting.duration(0), "0 s"),
        (formatting.duration(59.94), "59.9 s"),
        (formatting.duration(59.96), "1 min"),
        (formatting.duration(3599.6), "1 h"),
        (formatting.duration(3672), "1 h 1 min"),
        (formatting.duration(86_399), "1 d"),
        (formatting.duration(9e9), "104,166 d 16 h"),
        (formatting.duration(-73), "-1 min 13 s"),
        (formatting.duration(7200), "2 h"),
        (formatting.duration(73), "1 min 13 s"),
        (formatting.duration(200_000), "2 d 8 h"),
        (formatting.size(2048), "2 KiB"),
        (formatting.size(12), "12 B"),
        (formatting.duration(999.9e-3), "1,000 ms"),
        (formatting.rate(0.5), "30 /min"),
        (formatting.rate(1 / 300), "12 /h"),
        (formatting.rate(1 / 86_400), "1 /d"),
        (formatting.rate(0), "0 /s"),
        (formatting.share(1e-9), "<0.01 %"),
        (formatting.share(0), "0 %"),
        (formatting.rate(1234.5), "1,234 /s"),
        (formatting.share(0.123), "12.3 %"),
    ],
)
def test_figures_are_formatted_with_their_units(given: str, expected: str) -> None:
    assert given == expected


def test_each_metric_can_have_a_configured_limit() -> None:
    assert tuple(METRICS) == LIMIT_NAMES
