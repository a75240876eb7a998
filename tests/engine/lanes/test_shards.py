"""Lanes of a queue with several shards, whose users have work in different lanes."""

from __future__ import annotations

from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many
from tests.engine.sharding.sharded import users_of


@pytest.fixture
def sharded(redis: Redis) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(shards=3, fair_by="tasks"))


def starts(queue: FairQueue, number: int) -> Counter[str]:
    lanes = Counter[str]()
    for _ in range(number):
        lease = pop(queue)
        lanes[lease.lane] += 1
        queue.finish(lease, now=NOW)
    return lanes


def test_an_urgent_task_of_a_shard_without_other_tasks_is_next(sharded: FairQueue) -> None:
    for user in users_of(0, 20):
        push_many(sharded, user, 5)
    starts(sharded, 10)
    for user in users_of(1, 3):
        push_many(sharded, user, 1, lane="urgent")
        assert starts(sharded, 2)["urgent"] == 1


def test_urgent_tasks_of_one_shard_leave_half_of_the_starts_to_the_others(sharded: FairQueue) -> None:
    for user in users_of(0, 20):
        push_many(sharded, user, 50)
    for user in users_of(1, 200):
        push_many(sharded, user, 5, lane="urgent")
    lanes = starts(sharded, 400)
    assert 190 <= lanes["normal"] <= 240


def test_bulk_tasks_of_one_shard_get_their_least_share(sharded: FairQueue) -> None:
    for user in users_of(0, 20):
        push_many(sharded, user, 50)
    for user in users_of(1, 20):
        push_many(sharded, user, 50, lane="bulk")
    lanes = starts(sharded, 400)
    assert 0.04 * 400 <= lanes["bulk"] <= 0.06 * 400
    assert sum(starts(sharded, 1600).values()) == 1600
    assert sharded.check_invariants() == []
