"""The figures of a queue and its users with urgent and bulk tasks."""

from __future__ import annotations

import time

import pytest

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, sweep_all, task

LANES: tuple[Lane, ...] = ("urgent", "normal", "bulk")


def push(queue: FairQueue, user: str, lane: Lane, count: int = 1, at: float = NOW) -> None:
    queue.push_batch([task(user, lane=lane) for _ in range(count)], now=at)


def test_tasks_are_counted_by_lane(queue: FairQueue) -> None:
    for number, lane in enumerate(LANES, 1):
        push(queue, lane, lane, 2 * number)
    running = [pop(queue, users=[lane]) for lane in LANES]
    lanes = queue.get_stats().lanes
    assert {lane: (stats.ready, stats.running, stats.started) for lane, stats in lanes.items()} == {
        "urgent": (1, 1, 1),
        "normal": (3, 1, 1),
        "bulk": (5, 1, 1),
    }
    queue.settle([Outcome.finish(running[0]), Outcome.finish(running[1]), Outcome.release(running[2])], now=NOW)
    lanes = queue.get_stats().lanes
    assert [lanes[lane].running for lane in LANES] == [0, 0, 0]
    assert [lanes[lane].started for lane in LANES] == [1, 1, 1]
    assert queue.get_stats().depth["BULK"] == 6


def test_waits_are_counted_by_lane(queue: FairQueue) -> None:
    now = time.time() - 200
    for lane in LANES:
        push(queue, lane, lane, at=now)
    for lane, waited in zip(LANES, (1, 10, 100), strict=True):
        queue.finish(pop(queue, now + waited, users=[lane]), now=now + waited)
    stats = queue.get_stats()
    assert [stats.lanes[lane].wait.count for lane in LANES] == [1, 1, 1]
    assert [sum(stats.lanes[lane].waits.buckets.values()) for lane in LANES] == [1, 1, 1]
    assert [stats.lanes[lane].wait.p50 for lane in LANES] == pytest.approx([1, 10, 100], rel=0.1)
    assert [stats.lanes[lane].waits.sum_seconds for lane in LANES] == pytest.approx([1, 10, 100])
    assert sum(stats.waits.buckets.values()) == 3
    assert stats.waits.sum_seconds == pytest.approx(111)
    assert stats.wait.count == 3
    assert not [name for name in stats.totals if name.startswith("wait")]
    waits = queue.get_activity().wait_by_lane
    assert {lane: wait.count for lane, wait in waits.items()} == dict.fromkeys(LANES, 1)


@pytest.mark.parametrize("organization", ["", "acme"])
def test_each_user_with_a_task_that_can_start_counts_once(queue: FairQueue, organization: str) -> None:
    for user, lanes in (("a", LANES), ("b", ["urgent"]), ("c", ["bulk"]), ("d", ["urgent", "bulk"]), ("e", ["normal"])):
        for lane in lanes:
            push(queue, user, lane)  # type: ignore[arg-type]
        if organization and user != "e":
            queue.user(user).set_organization(organization, now=NOW)
    assert queue.get_stats().users_ready == 5
    assert [shard.users_ready for shard in queue.get_shard_stats()] == [5]
    assert queue.check_invariants() == []
    queue.user("d").pause(now=NOW)
    queue.user("a").set_max_running(1, now=NOW)
    assert queue.get_stats().users_ready == 4
    lease = pop(queue, users=["a"])
    assert queue.check_invariants() == []
    queue.release(lease, now=NOW)
    queue.user("d").resume(now=NOW)
    assert queue.get_stats().users_ready == 5
    while leases := queue.pop_batch(10, "w", now=NOW):
        queue.settle([Outcome.finish(lease) for lease in leases], now=NOW)
    assert queue.get_stats().users_ready == 0
    assert queue.check_invariants() == []


def test_members_with_tasks_of_any_lane_count_as_ready(queue: FairQueue) -> None:
    for user in ("a", "b", "c"):
        queue.user(user).set_organization("acme", now=NOW)
        push(queue, user, "bulk")
    push(queue, "a", "normal")
    assert queue.organization("acme").stats().members_ready == 3


def test_a_bulk_task_is_in_no_figure_of_the_longest_wait(queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([task("nightly", lane="bulk", sla=1) for _ in range(300)], now=now - 90_000)
    push(queue, "ann", "normal", at=now - 60)
    push(queue, "bob", "urgent", at=now - 30)
    sweep_all(queue, None)
    stats = queue.get_stats()
    assert stats.oldest_wait_seconds == pytest.approx(60, abs=20)
    assert stats.held_back_wait_seconds == 0
    assert [wait.user_id for wait in queue.longest_waits()] == ["ann", "bob"]
    queue.user("nightly").pause()
    assert queue.get_stats().held_back_wait_seconds == 0
    queue.user("ann").pause()
    stats = queue.get_stats()
    assert stats.oldest_wait_seconds == pytest.approx(30, abs=20)


def test_an_urgent_task_beyond_the_limit_of_its_user_could_start(queue: FairQueue) -> None:
    now = time.time()
    queue.user("ann").set_max_running(1, now=now - 60)
    push(queue, "ann", "normal", 2, at=now - 60)
    pop(queue, now - 60, lease=900)
    assert (queue.user("ann").stats().held_by, queue.user("ann").stats().waiting) == ("capped", 0)
    push(queue, "ann", "urgent", 2, at=now - 30)
    assert queue.user("ann").stats().held_by is None
    assert queue.get_stats().oldest_wait_seconds == pytest.approx(30, abs=20)
    assert pop(queue, None).lane == "urgent"
    assert queue.user("ann").stats().held_by == "capped"
    assert queue.get_stats().oldest_wait_seconds == 0


def test_users_with_bulk_tasks_are_neither_late_nor_noisy(queue: FairQueue) -> None:
    push(queue, "nightly", "bulk", 1000)
    push(queue, "mixed", "bulk", 2)
    push(queue, "mixed", "normal", at=NOW + 50)
    push(queue, "ann", "urgent", at=NOW + 60)
    queue.heartbeat("w", {}, now=NOW + 100)
    fairness = queue.fairness()
    users = {user.user_id: (user.ready, user.waiting, user.wait_seconds) for user in fairness.examined}
    assert users == {"nightly": (1000, 0, 0), "mixed": (3, 1, 50), "ann": (1, 1, 40)}
    assert fairness.noisy_users == ()
    assert [user.user_id for user in fairness.late_users] == ["mixed", "ann"]
    assert fairness.oldest_quiet_wait_seconds == 50


def test_health_notices_that_only_urgent_or_bulk_tasks_wait_without_a_worker(queue: FairQueue) -> None:
    for lane in ("urgent", "bulk"):
        push(queue, "ann", lane)
        assert any("tasks are waiting and no worker is running" in reason for reason in queue.health().reasons)
        queue.purge()
        assert not any("tasks are waiting" in reason for reason in queue.health().reasons)


def test_the_position_of_a_task_counts_the_tasks_of_its_user_that_go_first(queue: FairQueue) -> None:
    for name, options in (
        ("bulk", {"lane": "bulk"}),
        ("normal", {}),
        ("critical", {"priority": 6}),
        ("urgent", {"lane": "urgent"}),
    ):
        queue.push(task(task_id=name, **options), now=NOW)
    positions = {name: queue.position(name) for name in ("urgent", "critical", "normal", "bulk")}
    assert positions == {"urgent": 0, "critical": 1, "normal": 2, "bulk": 3}


def test_alerts_contain_the_lane_of_their_task(queue: FairQueue) -> None:
    queue.push_batch([task(lane="urgent"), task(lane="bulk", sla=1)], now=NOW)
    sweep_all(queue, NOW + 100)
    alerts = queue.take_alerts()
    assert {(alert.kind, alert.lane) for alert in alerts} == {("at_risk", "urgent"), ("at_risk", "bulk")}
    assert any("(no name, URGENT)" in str(alert) for alert in alerts)


def test_missed_start_deadlines_are_counted_by_lane(make_queue: MakeQueue) -> None:
    queue = make_queue()
    push_many(queue, "u", 1)
    queue.push_batch([task("u", lane="urgent"), task("u", lane="bulk", sla=1)], now=NOW)
    assert list(queue.get_stats().sla.by_priority) == ["CRITICAL", "VERY_HIGH", "HIGH", "NORMAL", "LOW", "VERY_LOW"]
    sweep_all(queue, NOW + 100)
    queue.pop_batch(3, "w", now=NOW + 100)
    counts = queue.get_stats().sla.by_priority
    assert next(iter(counts)) == "URGENT"
    assert list(counts)[-1] == "BULK"
    assert (counts["URGENT"].violated, counts["BULK"].violated) == (1, 1)
