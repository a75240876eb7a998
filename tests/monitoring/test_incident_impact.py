"""The surroundings of an incident, compared with counts of the tests. The tests give the time of each call."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.monitoring.reports.incident_impact import incident_impact
from tests.engine.conftest import pop, task
from tests.user_load import run_load

HOUR, DAY = 3600.0, 86_400.0
START = 2_000_073_600.0
"""The beginning of a day in UTC."""


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(retry_jitter=0))


@pytest.mark.parametrize("shards", [1, 3])
def test_affected_and_busy_users_under_load_equal_the_counts_of_the_test(redis: Redis, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(retry_jitter=0, shards=shards, user_ttl=30 * DAY))
    load = run_load(queue, START, incident="depth")
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=load.clock)
    first_hour = int(load.middle // HOUR)
    assert (found.begin, found.period_seconds) == (first_hour * HOUR, 3600)
    assert (len(found.users), found.known_users) == (80, 80)
    counts = {user: load.count(user, first_hour) for user in load.users}
    missed = {user: mine["sla_missed"] for user, mine in counts.items() if mine["sla_missed"]}
    assert {user.user_id: user.figures.sla_missed for user in found.hurt} == missed
    assert found.late_tasks == sum(missed.values())
    attempts = {user: mine["sla_kept"] + mine["sla_missed"] for user, mine in counts.items()}
    assert {user.user_id: user.figures.wait.count for user in found.users} == attempts
    busy = [user.busy_seconds or 0.0 for user in found.busiest]
    assert busy == sorted(busy, reverse=True)
    assert busy[0] > 0
    assert found.first_error is not None
    assert found.first_error.moved_at == load.first_error


def test_late_time_is_estimated_from_waits_and_the_sla(queue: FairQueue) -> None:
    queue.user("ann").set_sla(10, now=START)
    waits = (1, 40, 90)
    queue.push_batch([task("ann") for _ in waits], now=START)
    queue.sweep(now=START + 9)
    queue.incidents.record(queue.take_alerts(now=START + 9), now=START + 9)
    for waited in waits:
        queue.finish(pop(queue, START + waited), took=0.01, now=START + waited)
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=START + 100)
    assert [(user.user_id, user.figures.sla_missed) for user in found.hurt] == [("ann", 2)]
    assert found.late_seconds is not None
    assert (30 + 80) / 1.8 <= found.late_seconds <= (30 + 80) * 1.8


def test_late_time_is_not_known_for_tasks_with_an_sla_of_their_own(queue: FairQueue) -> None:
    queue.push(task("ann", sla=1), now=START)
    queue.sweep(now=START + 9)
    queue.incidents.record(queue.take_alerts(now=START + 9), now=START + 9)
    queue.finish(pop(queue, START + 9), took=0.01, now=START + 9)
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=START + 100)
    assert (found.late_tasks, found.late_seconds) == (1, None)


def test_an_incident_of_last_week_has_the_figures_of_its_days(queue: FairQueue) -> None:
    queue.incidents.open_limit("depth", "too many", now=START + HOUR)
    queue.push(task("ann", sla=1), now=START + HOUR)
    queue.finish(pop(queue, START + HOUR + 60), took=0.01, now=START + HOUR + 60)
    queue.incidents.close_limit("depth", now=START + 2 * HOUR)
    queue.push(task("ann", sla=1), now=START + 4 * DAY)
    queue.finish(pop(queue, START + 4 * DAY + 60), took=0.01, now=START + 4 * DAY + 60)
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=START + 4 * DAY + 70)
    assert (found.begin, found.end, found.period_seconds) == (START, START + DAY, DAY)
    assert [(user.user_id, user.figures.sla_missed, user.busy_seconds) for user in found.hurt] == [("ann", 1, None)]


def test_users_with_the_longest_waits_are_examined_first(queue: FairQueue) -> None:
    """A user that is known no more is found by its alerts, or by the waits that workers recorded."""
    queue.push(task("ann", sla=1), now=START)
    for minute in range(5):
        queue.sweep(now=START + 60 * minute)
    queue.incidents.open_limit("depth", "too many", now=START + 240)
    queue.finish(pop(queue, START + 240), took=0.01, now=START + 240)
    while queue.sweep(now=START + 3 * HOUR).more:
        pass
    assert not queue.user("ann").is_known()
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=START + 3 * HOUR)
    assert [(user.user_id, user.figures.sla_missed) for user in found.hurt] == [("ann", 1)]


def test_releases_of_the_day_before_and_the_first_error_are_found(queue: FairQueue) -> None:
    def deploy(version: str, at: float) -> None:
        queue.heartbeat(f"w-{version}", {"code_version": version}, now=START + at)

    def fail(error: str, at: float) -> None:
        queue.push(task("ann", max_retries=0), now=START + at)
        queue.fail(pop(queue, START + at), error, now=START + at)

    deploy("v0", -2 * DAY)
    deploy("v1", -HOUR)
    fail("before", 0)
    queue.incidents.open_limit("depth", "too many", now=START + HOUR)
    fail("no such address", HOUR + 1)
    deploy("v2", 2 * HOUR)
    fail("timeout", 2 * HOUR)
    queue.incidents.close_limit("depth", now=START + 3 * HOUR)
    deploy("v3", 4 * HOUR)
    (incident,) = queue.incidents.recent()
    found = incident_impact(queue, incident, now=START + 5 * HOUR)
    assert [release.code_version for release in found.releases] == ["v1", "v2"]
    assert (found.first_error and found.first_error.reason, found.dead_letters) == ("no such address", 2)
