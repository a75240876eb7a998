"""Incidents: one for each rule and class of tasks, whose messages the server gives to one caller each; and lost workers."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics import incidents
from django_fairque.engine.statistics.incidents import IncidentChange
from tests.engine.conftest import NOW, pop, push_many, sweep_all, task

PREFIX = "fq:{default:0}:"


def record_alerts(queue: FairQueue, now: float) -> list[IncidentChange]:
    """Sweep and record all alerts, as a worker does."""
    sweep_all(queue, now)
    changes = []
    while alerts := queue.take_alerts(100, now=now):
        changes += queue.incidents.record(alerts, now=now)
    return changes


def test_thousands_of_late_tasks_are_one_incident_with_a_summary_in_ten_minutes(queue: FairQueue) -> None:
    changes = []
    for minute in range(20):
        queue.push_batch([task(f"u{user}", sla=1) for user in range(60)], now=NOW + 60 * minute)
        changes += record_alerts(queue, NOW + 60 * minute + 30)
    assert [change.kind for change in changes] == ["opened", "summary"]
    (incident,) = queue.incidents.recent()
    assert (incident.title, incident.alerts, incident.summaries) == ("NORMAL tasks start late", 1_200, 1)
    assert len(incident.users) == 20
    assert sum(incident.users.values()) + incident.other_users <= 1_200
    assert len(incident.objects) == 100
    assert queue.incidents.get(incident.id) == incident


def test_each_class_of_tasks_has_its_own_incident(queue: FairQueue) -> None:
    for priority, lane in ((6, "normal"), (3, "normal"), (3, "urgent")):
        queue.push(task("u", priority, lane=lane, sla=1), now=NOW)
    record_alerts(queue, NOW + 100)
    assert {incident.subject for incident in queue.incidents.recent()} == {"CRITICAL", "NORMAL", "URGENT"}


def test_two_workers_never_get_the_same_message_and_any_of_them_closes(queue: FairQueue) -> None:
    """The first worker freezes right after it has opened the incident: the second one counts, summarizes and closes."""
    push_many(queue, "u", 4, sla=1)
    sweep_all(queue, NOW + 10)
    assert [change.kind for change in queue.incidents.record(queue.take_alerts(1, now=NOW), now=NOW + 10)] == ["opened"]
    assert queue.incidents.record(queue.take_alerts(1, now=NOW), now=NOW + 11) == []
    assert [change.kind for change in queue.incidents.record(queue.take_alerts(1, now=NOW), now=NOW + 611)] == [
        "summary"
    ]
    assert queue.incidents.record(queue.take_alerts(1, now=NOW), now=NOW + 612) == []
    assert queue.incidents.update(now=NOW + 2_000) == []  # its tasks wait still
    queue.purge(now=NOW + 2_000)
    (closed,) = queue.incidents.update(now=NOW + 2_000)
    assert (closed.kind, closed.incident.closed_at) == ("closed", NOW + 2_000)
    assert queue.incidents.update(now=NOW + 2_001) == []
    assert queue.sweep(now=NOW + 2_001).incidents == 0


def test_an_incident_with_a_new_alert_is_not_closed_by_a_slower_worker(queue: FairQueue) -> None:
    """The slow worker has judged it before the alert came."""
    push_many(queue, "u", 1, sla=1)
    record_alerts(queue, NOW + 10)
    pop(queue, NOW + 11)
    (seen,) = queue.incidents.recent()
    push_many(queue, "u", 1, sla=1)
    record_alerts(queue, NOW + 400)
    late = incidents.change_incidents(queue._shards, [incidents._closing_arguments(seen)], NOW + 401)
    assert queue._run(late) == []
    assert queue.incidents.recent()[0].is_open


def test_incidents_are_kept_for_30_days_and_at_most_1000(queue: FairQueue, redis: Redis) -> None:
    for number in range(1_010):
        queue.incidents.open_limit(f"limit {number}", "text", now=NOW)
    assert redis.zcard(f"{PREFIX}incidents") == 1_000
    assert len(list(redis.scan_iter(f"{PREFIX}incident:*", count=5_000))) == 1_000
    assert 29.9 * 86_400 < redis.ttl(f"{PREFIX}incident:{queue.incidents.recent(1)[0].id}") <= 30 * 86_400
    queue.incidents.open_limit("later", "text", now=NOW + 31 * 86_400)
    assert [incident.subject for incident in queue.incidents.recent()] == ["later"]
    for number in range(1_010):
        queue.incidents.close_limit(f"limit {number}", now=NOW + 31 * 86_400)
    assert [change.kind for change in queue.incidents.close_limit("later", now=NOW + 31 * 86_400)] == ["closed"]


def test_a_queue_without_incidents_pays_no_command_for_them(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "u", 3)
    pop(queue)
    assert queue.sweep(now=NOW).incidents == 0
    assert not list(redis.scan_iter(f"{PREFIX}incident*"))


def test_a_worker_that_ends_without_a_report_is_lost_for_a_day(queue: FairQueue) -> None:
    now = time.time()
    for process in ("web-7-abcdef.0.1", "web-7-abcdef.1.1", "other-8-abcdef.0.1"):
        queue.heartbeat(process, {"concurrency": "4", "started": str(now - 9)}, now=now - 700, ttl=60)
    queue.release_worker("other-8-abcdef.0.1", forget=True, now=now - 690)
    queue.heartbeat("alive-1-abcdef.0.1", {}, now=now)
    assert queue.sweep(now=now - 630).incidents == 1
    (lost,) = queue.incidents.lost_workers()
    assert (lost.worker, lost.name, lost.slots, len(lost.processes)) == ("web-7-abcdef", "web", 8, 2)
    assert [record.worker for record in queue.workers()] == ["alive-1-abcdef.0.1"]
    (opened,) = queue.incidents.update(now=now)
    assert "worker web-7-abcdef (2 processes, 8 slots) is lost" in str(opened)
    assert queue.incidents.update(now=now + 1) == []
    (closed,) = queue.incidents.update(now=now + 86_500)
    assert (closed.kind, closed.incident.id) == ("closed", opened.incident.id)


@pytest.mark.parametrize(("ago", "is_reason"), [(630, False), (500, True)])
def test_a_lost_worker_is_a_reason_of_the_health_for_ten_minutes(
    queue: FairQueue, ago: float, *, is_reason: bool
) -> None:
    now = time.time()
    queue.heartbeat("web-7-abcdef.0.1", {"concurrency": "4"}, now=now - ago - 60, ttl=60)
    queue.sweep(now=now - ago)
    queue.heartbeat("alive-1-abcdef.0.1", {}, now=now)
    health = queue.health()
    assert any("worker web-7-abcdef (1 process, 4 slots) is lost" in reason for reason in health.reasons) == is_reason


def test_a_worker_of_the_same_name_ends_the_loss(queue: FairQueue) -> None:
    now = time.time()
    queue.heartbeat("web-7-abcdef.0.1", {"started": str(now - 900)}, now=now - 400, ttl=60)
    queue.heartbeat("web-9-abcdef.0.1", {"started": str(now - 900)}, now=now, ttl=60)  # ran at the same time
    queue.sweep(now=now)
    assert [change.kind for change in queue.incidents.update(now=now)] == ["opened"]
    queue.heartbeat("web-8-abcdef.0.1", {"started": str(now - 200)}, now=now, ttl=60)
    assert queue.incidents.lost_workers() == []
    assert [change.kind for change in queue.incidents.update(now=now + 1)] == ["closed"]
    assert queue.sweep(now=now + 1).incidents == 0


def test_a_worker_whose_heartbeats_come_again_is_not_lost(queue: FairQueue) -> None:
    now = time.time()
    queue.heartbeat("web-7-abcdef.0.1", {}, now=now - 400, ttl=60)
    queue.sweep(now=now - 300)
    queue.heartbeat("web-7-abcdef.0.1", {}, now=now, ttl=60)
    assert queue.incidents.lost_workers() == []
    queue.incidents.update(now=now)
    queue.release_worker("web-7-abcdef.0.1", forget=True, now=now)
    assert queue.incidents.lost_workers() == []


def test_an_acknowledged_loss_is_not_listed_again(queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    for process in range(3):
        queue.heartbeat(f"web-7-abcdef.{process}.1", {}, now=now - 400, ttl=60)
    assert queue.incidents.acknowledge("web-7-abcdef")  # also if no worker has swept since
    assert not queue.incidents.acknowledge("web-7-abcdef")
    queue.sweep(now=now)
    assert queue.incidents.lost_workers() == []
    assert not list(redis.scan_iter(f"{PREFIX}worker*"))
