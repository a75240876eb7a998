"""Fetches of workers with reserved slots: how many tasks of each lane they get, and what wakes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_fairque.engine.leasing.lease_ops import PrefetchingWait
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lanes import LANES, Lane, LaneLimits
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

if TYPE_CHECKING:
    from redis import Redis

KEYS = ["fq:{default:0}:wake:urgent", "fq:{default:0}:wake:normal"]


def push(queue: FairQueue, lane: Lane, *users: str) -> None:
    queue.push_batch([task(user, lane=lane) for user in users], now=NOW)


def fetch(queue: FairQueue, most: int, below_urgent: int, bulk: int, *, woken: bool = False) -> Counter[str]:
    """Fetch with limits of lanes; return the number of leases of each lane."""
    limits = LaneLimits(below_urgent, bulk)
    settled = queue.settle([], most, worker="w", lane_limits=limits, woken=woken, now=NOW)
    return Counter(lease.lane for lease in settled.leases)


def is_woken(queue: FairQueue, lane: Lane) -> bool:
    return PrefetchingWait(queue, 0.001, lane).end()[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_a_fetch_gives_each_lane_as_many_tasks_as_its_limits_allow(redis: Redis, data: st.DataObject) -> None:
    redis.flushall()
    few = st.integers(0, 8)
    queue = FairQueue(redis, config=QueueConfig(shards=data.draw(st.sampled_from([1, 1, 2]))))
    organizations = data.draw(st.integers(0, 2))
    waiting = {lane: data.draw(few) for lane in LANES}
    for lane, tasks in waiting.items():
        for number in range(tasks):
            name = data.draw(st.sampled_from(["u1", "u2", f"{lane}{number}"]))
            if organizations:
                queue.user(name).set_organization(f"o{data.draw(st.integers(1, organizations))}", now=NOW)
            push(queue, lane, name)
    shard = data.draw(st.sampled_from(queue.shards))
    most, below_urgent, bulk = data.draw(st.integers(1, 20)), data.draw(few), data.draw(few)
    got = fetch(shard, most, below_urgent, bulk)
    assert got["bulk"] <= bulk
    assert got["normal"] + got["bulk"] <= below_urgent
    if len(queue.shards) == 1:
        lower = min(below_urgent, waiting["normal"] + min(bulk, waiting["bulk"]))
        assert sum(got.values()) == min(most, waiting["urgent"] + lower)
    assert queue.check_invariants() == []


def test_short_tasks_of_a_turn_count_for_the_limits(queue: FairQueue) -> None:
    push(queue, "normal", *["ann"] * 50)
    for lease in queue.pop_batch(20, "w", now=NOW):
        queue.finish(lease, took=0.00001, now=NOW)
    assert fetch(queue, 20, 3, 3) == {"normal": 3}


def test_a_list_of_users_keeps_the_limits(queue: FairQueue) -> None:
    push(queue, "normal", "ann", "bob")
    push(queue, "bulk", "ann", "bob", "cid")
    push(queue, "urgent", "ann")
    settled = queue.settle(
        [], 8, worker="w", users=["ann"], steal=["bob", "cid"], lane_limits=LaneLimits(3, 1), now=NOW
    )
    lanes = Counter(lease.lane for lease in settled.leases)
    assert lanes == {"urgent": 1, "normal": 2, "bulk": 1}


def test_a_fetch_without_limits_leaves_no_markers_of_lanes(queue: FairQueue, redis: Redis) -> None:
    push(queue, "urgent", "ann", "bob")
    queue.settle([], 1, worker="w", woken=True, now=NOW)
    push(queue, "normal", "cid")
    assert redis.exists(*KEYS) == 0


def test_only_higher_lanes_wake_a_worker_whose_free_slots_are_reserved(queue: FairQueue) -> None:
    assert fetch(queue, 3, 1, 0) == {}
    push(queue, "bulk", "ann")
    assert not is_woken(queue, "urgent")
    assert not is_woken(queue, "normal")
    push(queue, "normal", "bob")
    assert not is_woken(queue, "urgent")
    assert is_woken(queue, "normal")
    push(queue, "urgent", "cid")
    assert is_woken(queue, "urgent")
    assert is_woken(queue, "bulk")


def test_the_marker_of_a_lane_is_set_again_while_its_tasks_remain(queue: FairQueue) -> None:
    assert fetch(queue, 1, 0, 0) == {}
    push(queue, "bulk", "ann", "bob")
    push(queue, "urgent", "cid", "dan")
    assert is_woken(queue, "urgent")
    assert fetch(queue, 1, 0, 0, woken=True) == {"urgent": 1}
    assert is_woken(queue, "urgent")
    assert fetch(queue, 1, 0, 0, woken=True) == {"urgent": 1}
    assert not is_woken(queue, "urgent"), "only bulk tasks are left"
    assert is_woken(queue, "bulk")


def test_a_task_that_becomes_due_wakes_a_worker_whose_free_slots_are_reserved(queue: FairQueue) -> None:
    assert fetch(queue, 1, 0, 0) == {}
    queue.push(task("ann", lane="urgent", delay=60), now=NOW)
    assert is_woken(queue, "urgent"), "so that it looks when the task is due"


def test_limits_must_be_whole_numbers(queue: FairQueue) -> None:
    with pytest.raises(TaskValidationError, match="a limit of lane_limits must be a whole number from 0, got -1"):
        queue.settle([], 1, worker="w", lane_limits=LaneLimits(-1, 0))
