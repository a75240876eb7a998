"""Alerts reach people from a worker's child, and schedules fire, while the supervisor runs no user code."""

from __future__ import annotations

import logging
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.core import mail

from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.health import Alert
from django_fairque.engine.statistics.incidents import Incident, IncidentChange
from django_fairque.signals import sla_at_risk
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.reporting.signal_thread import SignalThread
from tests.fixture_types import Redis, Server
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    import pytest


ALERT = Alert("at_risk", 100.0, "default", "t1", "acme", "app.report", Priority.HIGH, deadline=130.0)


def test_a_missed_sla_reaches_signal_receivers_in_a_worker_process(workers: Workers) -> None:
    late = workers.queue.push(Task.create("ann", 3, {"args": [], "kwargs": {}}, name="noop", sla=0.000001)).task_id
    worker = workers.start().wait_ready()
    child = worker.children()[0].pid
    expected = {f"signal violated noop {late} {child}"}

    def received() -> set[str]:
        lines: Any = workers.redis.lrange("tests:alerts", 0, -1)
        return {line.decode() for line in lines}

    eventually(lambda: received() >= expected)
    assert f"task {late} (noop, NORMAL) of user 'ann'" in worker.log
    assert "this receiver is broken" in worker.log


@pytest.mark.thorough
def test_receivers_get_the_end_of_a_task_killed_with_its_process(workers: Workers) -> None:
    task_id = workers.push("deaf", 60.0, timeout=0.2, max_retries=1)
    workers.start(TEST_HEAR_ENDS="1", hard_timeout_grace="0.2", FAIRQUE_QUEUE__RETRY_BASE_SECONDS="0.01")
    expected = [
        f"{signal} default {task_id} True" for signal in ("task_failed", "task_retried", "task_failed", "task_dead")
    ]

    def received() -> list[str]:
        lines: Any = workers.redis.lrange("tests:alerts", 0, -1)
        return [line.decode() for line in lines]

    eventually(lambda: len(received()) == len(expected))
    assert [
        line.partition(" django_fairque.tasks.errors.TaskTimeoutError: it ran for")[0] for line in received()
    ] == expected


def test_a_worker_fires_schedules(workers: Workers) -> None:
    template = Task.create("ann", 3, {"args": [1, 2], "kwargs": {}}, name="add")
    workers.queue.schedules.add("often", task=template, every=1)
    workers.start("--processes", "1")
    eventually(lambda: workers.queue.get_stats().totals.get("finished", 0) >= 2)
    last = workers.queue.schedules.get("often").last
    assert last is not None
    assert workers.queue.get_task(last.task_id).user_id == "ann"


@pytest.mark.thorough
def test_a_storm_of_alerts_has_few_log_lines_and_no_mail_for_each(
    server: Server, redis: Redis, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with a backlog of 5,000 late tasks: one mail when the incident opens, at most one in ten minutes while alerts
    come, and one when it is over."""
    settings.EMAIL_SUBJECT_PREFIX = "[shop] "
    queue, begin = FairQueue(redis), time.time() - 3_000
    queue.push_batch([Task.create("acme", 3, None, sla=1) for _ in range(5_000)], now=begin)
    signal_threads = [SignalThread(WorkerOptions(f"w{i}", alert_email=("ops@example.com",)), [queue]) for i in range(2)]
    moment = begin + 60
    for number in range(20):
        queue.sweep(now=moment)
        for index in range(3):
            alerts = queue.take_alerts(100, now=moment)
            changes = queue.incidents.record(alerts, now=moment)
            signal_threads[(number + index) % 2].announce([*alerts, *changes])
        moment += 60
    for signal_thread in signal_threads:
        signal_thread.end(60)
    lines = [
        record.getMessage()
        for record in caplog.records
        if "alerts" in record.getMessage() or "task " in record.getMessage()
    ]
    assert len(lines) <= 8, lines
    assert sum(int(found[1]) for line in lines if (found := re.search(r"default: (\d+) alerts", line))) > 1_000
    (incident,) = queue.incidents.recent()
    assert [sent.subject for sent in mail.outbox] == [
        "[shop] queue default: incident: NORMAL tasks start late",
        "[shop] queue default: incident goes on: NORMAL tasks start late",
    ]
    assert incident.id in mail.outbox[0].body
    assert f"{incident.alerts:,} alerts" not in mail.outbox[0].body
    queue.purge(10_000, now=moment)
    (closed,) = queue.incidents.update(now=moment + 600)
    assert str(closed).startswith(f"incident {incident.id} recovered after ")


def test_an_error_while_alerts_are_reported_is_logged_and_the_others_are_sent(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": "nowhere.Backend"}}
    else:
        settings.EMAIL_BACKEND = "nowhere.Backend"
    received: list[Alert] = []

    def receiver(alert: Alert, **_: Any) -> None:
        received.append(alert)

    def broken_receiver(**_: Any) -> None:
        raise RuntimeError("deaf")

    sla_at_risk.connect(broken_receiver, sender="app.report")
    sla_at_risk.connect(receiver, sender="app.report")
    logger = logging.getLogger("django_fairque.worker")
    logger.addHandler(caplog.handler)
    try:
        signal_thread = SignalThread(WorkerOptions("w", alert_email=("a@example.com",)), [])
        incident = Incident("i1", "default", "sla", "HIGH", 90.0, 100.0, None, 1, str(ALERT), str(ALERT))
        signal_thread.announce([ALERT])
        signal_thread.announce([IncidentChange("opened", incident), ALERT])
        signal_thread.end(60)
    finally:
        logger.removeHandler(caplog.handler)
        sla_at_risk.disconnect(receiver, sender="app.report")
        sla_at_risk.disconnect(broken_receiver, sender="app.report")
    assert received == [ALERT, ALERT]
    for words in ("e-mail to a@example.com failed", "receiver"):
        assert words in caplog.text


def test_alerts_announced_after_the_end_are_sent() -> None:
    """A fetched alert is no longer on the server, so it must be sent now."""
    received: list[Alert] = []

    def receiver(alert: Alert, **_: Any) -> None:
        received.append(alert)

    sla_at_risk.connect(receiver, sender="app.report")
    try:
        signal_thread = SignalThread(WorkerOptions("w"), [])
        for _ in range(3):
            signal_thread.announce([ALERT])
            signal_thread.end(60)
    finally:
        sla_at_risk.disconnect(receiver, sender="app.report")
    assert received == [ALERT] * 3


def test_a_stopping_supervisor_leaves_alerts_to_the_next_worker(workers: Workers) -> None:
    """Its children are leaving: nobody would tell of them."""
    worker = workers.start(FAIRQUE_QUEUE__SWEEP_INTERVAL="0.05", shutdown_timeout="60")
    worker.wait_ready()
    workers.push("deaf", 60.0)
    workers.wait_started()
    worker.send(signal.SIGTERM)
    eventually(lambda: "stopping: 1 running tasks" in worker.log)
    late = workers.push("noop", expires_at=time.time() - 1)
    for _ in range(2):  # two sweeps: a worker that fetches alerts does so after the first
        workers.push("noop", execute_after=time.time() + 0.01)
        eventually(lambda: not workers.queue.get_stats().states[TaskState.SCHEDULED])
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert [(alert.kind, alert.task_id) for alert in workers.queue.take_alerts()] == [("died", late)]


def broken(alert: Alert) -> None:
    raise RuntimeError(str(alert))
