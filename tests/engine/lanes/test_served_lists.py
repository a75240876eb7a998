"""Lanes of a worker that serves a list of users, and the checker's repair of lanes."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many
from tests.user_records import change_record

P = "fq:{default:0}:"


def push(queue: FairQueue, user: str, *lanes: Lane) -> None:
    for lane in lanes:
        push_many(queue, user, 1, lane=lane)


def serve(queue: FairQueue, users: list[str]) -> list[tuple[str, Lane]]:
    """Start all tasks of these users, one by one."""
    started = []
    while lease := queue.pop("w", users=users, now=NOW):
        started.append((lease.user_id, lease.lane))
    return started


@pytest.mark.parametrize("organization", [None, "o"])
def test_a_list_of_users_is_served_lane_by_lane(queue: FairQueue, organization: str | None) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization(organization, now=NOW)
        push(queue, user, "bulk", "normal", "urgent")
    push(queue, "eve", "urgent")
    started = serve(queue, ["ann", "bob"])
    assert [lane for _, lane in started] == ["urgent", "urgent", "normal", "normal", "bulk", "bulk"]
    assert [user for user, _ in started].count("ann") == 3
    assert queue.check_invariants() == []
    assert pop(queue).user_id == "eve"


def test_a_user_at_its_limit_may_have_one_urgent_task_beyond_it(queue: FairQueue) -> None:
    queue.user("ann").set_max_running(2, now=NOW)
    push(queue, "ann", "normal", "normal", "normal", "bulk", "urgent", "urgent")
    assert serve(queue, ["ann"]) == [("ann", "urgent"), ("ann", "urgent")]
    push(queue, "ann", "urgent")
    assert serve(queue, ["ann"]) == [("ann", "urgent")]
    assert serve(queue, ["ann"]) == []


@pytest.mark.parametrize("lane", ["urgent", "bulk"])
@pytest.mark.parametrize("organization", [None, "o"])
def test_the_checker_repairs_lanes(queue: FairQueue, redis: Redis, lane: Lane, organization: str | None) -> None:
    queue.user("ann").set_organization(organization, now=NOW)
    push(queue, "ann", lane)
    number = {"urgent": 7, "bulk": 0}[lane]
    keys = [f"{P}{lane}", *([f"{P}{lane}:{organization}"] if organization else [])]
    for key in keys:
        for is_lost in (True, False):
            redis.delete(key) if is_lost else redis.zadd(key, {"stranger": 1})
            assert queue.check_invariants()
            assert all(repair.is_fixed for repair in queue.repair(now=NOW))
            assert queue.check_invariants() == []
    change_record(redis, f"{P}user:ann", **{f"ready_{number}": 5})
    redis.hset(f"{P}stats", mapping={"running": 3, f"running:{lane}": 2, f"depth:{number}": 9})
    redis.hdel(f"{P}stats", "revision")
    if organization:
        redis.hset(f"{P}group:o", f"ready:{number}", 3)
    assert queue.check_invariants()
    for _ in range(2):
        queue.repair(now=NOW)
    assert queue.check_invariants() == []
    lease = pop(queue)
    assert (lease.user_id, lease.lane) == ("ann", lane)
    queue.finish(lease, now=NOW)
    assert queue.check_invariants() == []
