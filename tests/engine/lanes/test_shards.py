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

from .oracle import Lane, ShardedOrder, Start

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


def test_an_urgent_task_on_a_shard_without_other_tasks_is_next(sharded: FairQueue) -> None:
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


@pytest.mark.parametrize("others", [(9, 0, 0), (4, 0, 5), (3, 3, 3)])
def test_a_user_that_marks_all_tasks_urgent_gets_little_more_than_users_of_other_shards(
    sharded: FairQueue, others: tuple[int, int, int]
) -> None:
    users = [user for shard, count in enumerate(others) for user in users_of(shard, count + 1)[1:]]
    urgent = users_of(1, 1)[0]
    push_many(sharded, urgent, 300, lane="urgent")
    for user in users:
        push_many(sharded, user, 100)
    turns = Counter[str]()
    for _ in range(300):
        lease = pop(sharded)
        turns[lease.user_id] += 1
        sharded.finish(lease, now=NOW)
    assert turns[urgent] <= 10 + 2 + max(turns[user] for user in users)
    assert max(turns[user] for user in users) - min(turns[user] for user in users) <= 2


class World:
    """The engine and the oracle, which get the same calls; each start is compared."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        self.queue = FairQueue(redis, config=QueueConfig(shards=SHARDS, fair_by="tasks"))
        self.order = ShardedOrder(SHARDS, lambda user: compute_bucket(user) % SHARDS)
        self.running: list[tuple[Lease, Start]] = []
        self.slots, self.preferred = self.random.choice([1, 3, 8]), 0
        self.lanes: list[Lane] = self.random.choice([["normal"], ["urgent", "normal"], list(LANES), list(LANES)])
        for shard in range(SHARDS):
            for user in users_of(shard, self.random.choice([1, 2, 5])):
                weight, cap = self.random.choice([0.5, 1, 1, 1, 2]), self.random.choice([None, None, None, 1])
                self.order.orders[shard].add_user(user, None, weight, cap)
                self.queue.user(user).set_weight(weight, now=NOW)
                self.queue.user(user).set_max_running(cap, now=NOW)

    def any_user(self) -> str:
        return self.random.choice(list(self.order.users))

    def push(self) -> None:
        user, lane, number = self.any_user(), self.random.choice(self.lanes), self.random.choice([1, 3, 10])
        push_many(self.queue, user, number, lane=lane)
        self.order.of(user).push(user, lane, number)

    def pause(self) -> None:
        user = self.any_user()
        handle, is_paused = self.queue.user(user), self.order.users[user].is_paused
        if is_paused:
            handle.resume(now=NOW)
        else:
            handle.pause(now=NOW)
        self.order.of(user).pause(user, not is_paused)

    def serve(self) -> None:
        if len(self.running) == self.slots:
            self.end()
        allowed = self.order.next_shards()
        leases = self.queue.pop_batch(1, "w", now=NOW)
        assert bool(leases) == bool(allowed)
        for lease in leases:
            shard = compute_bucket(lease.user_id) % SHARDS
            assert shard in allowed
            start = self.order.start(shard)
            assert start is not None
            assert (lease.user_id, lease.lane) == (start.user.name, start.lane)
            self.running.append((lease, start))
            self.preferred += len(allowed) < SHARDS

    def end(self) -> None:
        if self.running:
            lease, start = self.running.pop(self.random.randrange(len(self.running)))
            order = self.order.of(lease.user_id)
            if self.random.random() < 0.2:
                self.queue.release(lease, now=NOW)
                order.give_back(start)
            else:
                self.queue.finish(lease, now=NOW)
                order.finish(start)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tasks_of_several_shards_start_in_the_order_of_the_model(redis: Redis, seed: int) -> None:
    world = World(redis, seed)
    actions = [world.push] + [world.serve] * 4 + [world.end] * 2 + [world.pause] * world.random.choice([0, 1])
    for _ in range(200):
        world.random.choice(actions)()
    assert world.queue.check_invariants() == []
    assert world.order.turns.requests == 0 or world.preferred > 0
