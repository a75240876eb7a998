"""Lanes of a queue with several shards, whose users have work in different lanes."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many
from tests.engine.sharding import sharded as on_shards

from .oracle import Lane, ShardTurns

SHARDS = 3


def users_of(shard: int, count: int) -> list[str]:
    return on_shards.users_of(shard, count, SHARDS)


@pytest.fixture
def sharded(redis: Redis) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(shards=SHARDS, fair_by="tasks"))


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


@pytest.mark.thorough
def test_bulk_tasks_of_one_shard_get_their_least_share(sharded: FairQueue) -> None:
    for user in users_of(0, 20):
        push_many(sharded, user, 50)
    for user in users_of(1, 20):
        push_many(sharded, user, 50, lane="bulk")
    lanes = starts(sharded, 400)
    assert 0.04 * 400 <= lanes["bulk"] <= 0.06 * 400
    assert sum(starts(sharded, 1600).values()) == 1600
    assert sharded.check_invariants() == []


@pytest.mark.parametrize("lane", ["urgent", "bulk"])
def test_shards_with_tasks_of_one_lane_take_turns(sharded: FairQueue, lane: Lane) -> None:
    for shard in range(SHARDS):
        for user in users_of(shard, 5):
            push_many(sharded, user, 20, lane=lane)
    served = Counter[int]()
    for _ in range(90):
        lease = pop(sharded)
        served[compute_bucket(lease.user_id) % SHARDS] += 1
        sharded.finish(lease, now=NOW)
    assert set(served.values()) == {30}


def test_bulk_tasks_get_their_least_share_while_other_shards_have_urgent_and_normal_tasks(sharded: FairQueue) -> None:
    push_many(sharded, users_of(0, 1)[0], 1)
    starts(sharded, 1)  # an odd number of requests before the others
    for shard, lane in enumerate(("normal", "urgent", "bulk")):
        for user in users_of(shard, 100):
            push_many(sharded, user, 5, lane=lane)
    lanes = starts(sharded, 400)
    assert lanes["bulk"] == 20
    assert 180 <= lanes["normal"] <= 200


class World:
    """The engine and the oracle of the turns between shards, which get the same calls."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        self.queue = FairQueue(redis, config=QueueConfig(shards=SHARDS, fair_by="tasks"))
        self.turns = ShardTurns()
        self.users = [user for shard in range(SHARDS) for user in users_of(shard, self.random.choice([1, 2, 5]))]
        self.queued = Counter[tuple[str, Lane]]()
        self.paused = set[str]()
        self.leases: list[Lease] = []
        self.preferred = 0

    def waiting(self) -> dict[Lane, set[int]]:
        """Return the shards with a task of each lane that can start."""
        found: dict[Lane, set[int]] = {lane: set() for lane in LANES}
        for (user, lane), number in self.queued.items():
            if number and user not in self.paused:
                found[lane].add(compute_bucket(user) % SHARDS)
        return found

    def push(self) -> None:
        user, lane, number = self.random.choice(self.users), self.random.choice(LANES), self.random.choice([1, 3, 10])
        push_many(self.queue, user, number, lane=lane)
        self.queued[user, lane] += number

    def pause(self) -> None:
        user = self.random.choice(self.users)
        handle = self.queue.user(user)
        if user in self.paused:
            handle.resume(now=NOW)
        else:
            handle.pause(now=NOW)
        self.paused ^= {user}

    def serve(self) -> None:
        waiting = self.waiting()
        if not any(waiting.values()):
            return
        allowed = self.turns.next_shards(waiting)
        lease = pop(self.queue)
        assert compute_bucket(lease.user_id) % SHARDS in allowed
        self.queued[lease.user_id, lease.lane] -= 1
        self.leases.append(lease)
        self.preferred += len(allowed) < SHARDS

    def end(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            if self.random.random() < 0.2:
                self.queue.release(lease, now=NOW)
                self.queued[lease.user_id, lease.lane] += 1
            else:
                self.queue.finish(lease, now=NOW)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_worker_takes_its_turns_between_shards_as_the_oracle(redis: Redis, seed: int) -> None:
    world = World(redis, seed)
    for _ in range(150):
        world.random.choice([world.push, world.serve, world.serve, world.serve, world.end, world.end, world.pause])()
    assert world.queue.check_invariants() == []
    assert world.turns.requests == 0 or world.preferred > 0
