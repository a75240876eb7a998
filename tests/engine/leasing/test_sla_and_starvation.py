"""Promises to start: at risk, broken, and the classes that starvation moves up. Told once, found without a scan."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.queue_stats import SlaCounts
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, sweep_all, task

HOUR = 3600.0


def alerts_at(queue: FairQueue, now: float) -> list[tuple[str, str]]:
    sweep_all(queue, now)
    return [(alert.kind, alert.task_id) for alert in queue.take_alerts(1000, now=now)]


def test_an_sla_at_risk_is_announced_once(queue: FairQueue) -> None:
    queue.push(task(task_id="t"), now=NOW)
    assert alerts_at(queue, NOW + 2 * HOUR - 301) == []
    assert alerts_at(queue, NOW + 2 * HOUR - 300) == [("at_risk", "t")]
    assert alerts_at(queue, NOW + 2 * HOUR - 299) == []
    assert queue.get_stats().totals["sla_at_risk"] == 1


def test_a_start_after_the_sla_is_counted_and_announced(queue: FairQueue) -> None:
    queue.push(task(task_id="t", sla=10), now=NOW)
    assert alerts_at(queue, NOW + 4) == []
    assert alerts_at(queue, NOW + 5) == [("at_risk", "t")]  # half of a promise that is shorter than the warning time
    assert queue.pop("w", now=NOW + 12) is not None
    (alert,) = queue.take_alerts(now=NOW)
    assert (alert.kind, alert.deadline, str(alert).endswith("started 2.0 s later than promised")) == (
        *("violated", NOW + 10, True),
    )
    stats = queue.get_stats()
    assert (stats.totals["sla_violated"], stats.totals["sla_overdue"]) == (1, 1)
    counted = {name: counts for name, counts in stats.sla.by_priority.items() if counts != SlaCounts(0, 0, 0)}
    assert counted == {"NORMAL": SlaCounts(1, 1, 1)}
    assert list(stats.sla.by_priority) == [priority.name for priority in reversed(Priority)]


def test_an_alert_says_that_a_waiting_task_is_already_late(queue: FairQueue) -> None:
    """No worker swept before the deadline: the first warning comes after it."""
    queue.push(task(task_id="t", sla=10), now=NOW)
    sweep_all(queue, NOW + 90)
    (alert,) = queue.take_alerts(now=NOW + 90)
    assert (alert.kind, str(alert).partition("'u' ")[2]) == ("at_risk", "is 80 s late and has not started")


@pytest.mark.parametrize("ended", ["fail", "release"])
def test_an_sla_is_missed_only_once(queue: FairQueue, ended: str) -> None:
    queue.push(task(task_id="t", sla=10), now=NOW)
    assert alerts_at(queue, NOW + 20) == [("at_risk", "t")]
    for second in (21, 22, 23):
        lease = pop(queue, NOW + second)
        outcome = Outcome.fail(lease, "x", delay=0) if ended == "fail" else Outcome.release(lease)
        queue.settle([outcome], now=NOW + second)
    assert alerts_at(queue, NOW + 60) == [("violated", "t")]
    totals = queue.get_stats().totals
    assert (totals["sla_violated"], totals["sla_overdue"]) == (1, 1)


def test_a_retry_does_not_announce_its_sla_again(queue: FairQueue) -> None:
    queue.push(task(task_id="t", sla=10), now=NOW)
    assert alerts_at(queue, NOW + 6) == [("at_risk", "t")]
    queue.fail(pop(queue, NOW + 7), "x", delay=0, now=NOW + 7)
    assert alerts_at(queue, NOW + 16) == []


@pytest.mark.parametrize(("own", "users", "expected"), [(None, None, 7200), (None, 60, 60), (5, 60, 5)])
def test_the_sla_of_the_task_or_of_its_user_counts(
    queue: FairQueue, own: float | None, users: float | None, expected: float
) -> None:
    queue.user("u").set_sla(users, now=NOW)
    queue.push(task(task_id="t", sla=own), now=NOW)
    assert queue.get_task("t").sla_deadline == NOW + expected
    assert queue.user("u").stats().sla == users


def test_the_sla_scan_reads_only_tasks_at_risk(queue: FairQueue, redis: Redis) -> None:
    queue.push_batch([task(f"u{i % 50}", 1) for i in range(10_000)], now=NOW)
    queue.push_batch([task("u1", 1, sla=60) for _ in range(5)], now=NOW)
    queue.sweep(now=NOW)
    idle = commands(redis, lambda: queue.sweep(now=NOW + 1))
    redis.config_resetstat()
    assert queue.sweep(now=NOW + 31).at_risk == 5
    assert (
        redis.info("commandstats")["cmdstat_hgetall"]["calls"] <= 5 + 1
    )  # the tasks, and their user if it is not kept
    assert len(queue.take_alerts(now=NOW)) == 5
    assert idle < 30


@pytest.mark.parametrize(
    ("before", "after", "hours"),
    [
        (Priority.VERY_LOW, Priority.NORMAL, 24),
        (Priority.LOW, Priority.NORMAL, 24),
        (Priority.NORMAL, Priority.HIGH, 4),
    ],
)
def test_a_promoted_task_keeps_its_sla(queue: FairQueue, before: Priority, after: Priority, hours: int) -> None:
    (task_id,) = push_many(queue, "a", 1, priority=before)
    assert ("promoted", task_id) not in alerts_at(queue, NOW + hours * HOUR - 1)
    assert ("promoted", task_id) in alerts_at(queue, NOW + hours * HOUR)
    moved = queue.get_task(task_id)
    assert (moved.priority, moved.promoted_from) == (after, before)
    assert moved.sla_deadline == NOW + queue.config.sla[before.name]  # a promotion keeps the deadline
    totals = queue.get_stats().totals
    assert (totals["promoted"], totals[f"promoted:{before.value}"]) == (1, 1)


@pytest.mark.parametrize("before", [Priority.VERY_LOW, Priority.LOW])
def test_a_task_that_became_normal_becomes_high_four_hours_later(queue: FairQueue, before: Priority) -> None:
    (task_id,) = push_many(queue, "a", 1, priority=before)
    assert ("promoted", task_id) in alerts_at(queue, NOW + 25 * HOUR)  # maintenance was an hour late
    assert alerts_at(queue, NOW + 29 * HOUR - 1) == []
    assert queue.get_task(task_id).priority is Priority.NORMAL
    assert alerts_at(queue, NOW + 29 * HOUR) == [("promoted", task_id)]
    moved = queue.get_task(task_id)
    assert (moved.priority, moved.promoted_from) == (Priority.HIGH, before)
    assert moved.sla_deadline == NOW + queue.config.sla[before.name]
    assert alerts_at(queue, NOW + 1000 * HOUR) == []
    totals = queue.get_stats().totals
    assert (totals["promoted"], totals[f"promoted:{before.value}"], totals["promoted:3"]) == (2, 1, 1)
    assert [lease.task_id for lease in queue.pop_batch(2, "w", now=NOW + 1000 * HOUR)] == [task_id]


def test_a_retry_of_a_promoted_task_waits_four_hours_for_the_next_promotion(queue: FairQueue) -> None:
    (task_id,) = push_many(queue, "a", 1, priority=Priority.LOW)
    alerts_at(queue, NOW + 24 * HOUR)
    queue.fail(pop(queue, NOW + 24 * HOUR), "no", delay=HOUR, now=NOW + 24 * HOUR)
    assert ("promoted", task_id) not in alerts_at(queue, NOW + 29 * HOUR - 1)
    assert ("promoted", task_id) in alerts_at(queue, NOW + 29 * HOUR)


def test_a_task_is_not_promoted_beyond_a_class_that_is_switched_off(make_queue: MakeQueue) -> None:
    queue = make_queue(starvation={"NORMAL": 0}, sla_at_risk_seconds=0)
    (task_id,) = push_many(queue, "a", 1, priority=Priority.LOW)
    for day in (1, 2, 3):
        alerts_at(queue, NOW + day * 24 * HOUR)
    assert queue.get_task(task_id).priority is Priority.NORMAL


def test_a_promoted_task_keeps_its_order_by_time(queue: FairQueue) -> None:
    (old,) = push_many(queue, "a", 1, priority=Priority.LOW)
    queue.push(task("a", Priority.NORMAL, task_id="young"), now=NOW + 23 * HOUR)
    queue.sweep(now=NOW + 24 * HOUR)
    assert [lease.task_id for lease in queue.pop_batch(2, "w", now=NOW + 24 * HOUR)] == [old, "young"]


def test_no_task_is_promoted_when_promotion_is_switched_off(make_queue: MakeQueue) -> None:
    queue = make_queue(starvation={"LOW": 0}, sla_at_risk_seconds=0)
    (task_id,) = push_many(queue, "a", 1, priority=Priority.LOW)
    alerts_at(queue, NOW + 1000 * HOUR)
    assert queue.get_task(task_id).priority is Priority.LOW


def test_alerts_are_returned_once_except_to_a_repeated_call(queue: FairQueue, redis: Redis) -> None:
    from django_fairque.engine.statistics import health as alerts

    queue.push_batch([task(sla=10) for _ in range(3)], now=NOW)
    queue.sweep(now=NOW + 6)
    request = next(alerts.take_alerts(queue._shards, 2, NOW))
    first, second = queue._transport.send(request), queue._transport.send(request)
    assert first == second
    assert len(first) == 2
    assert len(queue.take_alerts(now=NOW)) == 1
    assert queue.take_alerts(now=NOW) == []


class TestDeaths:
    """A task whose end no worker reports raises an alert once, with the reason."""

    def test_an_expired_task_in_any_state_raises_an_alert(self, queue: FairQueue) -> None:
        late: dict[str, Any] = {"expires_at": NOW + 20}
        queue.push(task("ann", task_id="swept", **late), now=NOW)
        queue.push(task("bob", task_id="due", execute_after=NOW + 25, expires_at=NOW + 26), now=NOW)
        queue.push_graph(
            [task(task_id="parent", execute_after=NOW + 99), task(depends_on=["parent"], task_id="child", **late)]
        )
        assert alerts_at(queue, NOW + 19) == []
        assert sorted(alerts_at(queue, NOW + 30)) == [("died", "child"), ("died", "due"), ("died", "swept")]
        assert alerts_at(queue, NOW + 31) == []

    def test_a_task_that_a_worker_finds_expired_raises_an_alert(self, queue: FairQueue) -> None:
        queue.push(task("ann", task_id="late", name="app.report", expires_at=NOW + 20), now=NOW)
        assert queue.pop("w", now=NOW + 20) is None
        (alert,) = queue.take_alerts(now=NOW + 20)
        assert (alert.kind, alert.task_id, alert.user_id, alert.name) == ("died", "late", "ann", "app.report")
        assert (alert.reason, alert.deadline) == ("not started in time", None)
        assert str(alert) == "task late (app.report, NORMAL) of user 'ann' is a dead letter: not started in time"

    @pytest.mark.parametrize("how", ["lease", "worker"])
    def test_a_task_that_ends_its_workers_raises_an_alert(self, make_queue: MakeQueue, how: str) -> None:
        queue, now = make_queue(max_deliveries=2), NOW
        queue.push(task(task_id="t"), now=now)
        for _ in range(2):
            assert alerts_at(queue, now) == []
            lease = pop(queue, now, lease=10)
            if how == "worker":
                queue.release_worker("w", [lease.token], reason="it was killed", now=now)
            now += 10
            queue.sweep(now=now)
        (alert,) = queue.take_alerts(now=now)
        reason = "it was killed" if how == "worker" else "no renewal before the lease ended"
        assert (alert.kind, alert.task_id, alert.reason) == ("died", "t", reason)

    def test_an_end_that_a_worker_reports_raises_no_alert(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_deliveries=1)
        for kind in ("fail", "crash", "poison"):
            queue.push(task(), now=NOW)
            if kind == "crash":  # the first one never makes a dead letter
                queue.release_worker("w", [pop(queue).token], now=NOW)
            assert queue.settle([Outcome(pop(queue), kind, b"x")], worker="w", now=NOW).statuses == ["dead"]
        assert alerts_at(queue, NOW) == []
