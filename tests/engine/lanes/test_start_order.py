"""Tasks start in the order that the rule demands, one by one, in random worlds."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.lanes import LANES, Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

from .oracle import FairOrder, Start


class World:
    """The engine and the oracle, which get the same calls; each start is compared."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        self.queue = FairQueue(redis, config=QueueConfig(fair_by="tasks"))
        self.order = FairOrder()
        self.running: list[tuple[Lease, Start]] = []
        self.slots = self.random.choice([1, 3, 8, 16])
        self.lanes: list[Lane] = self.random.choice([["normal"], ["normal", "bulk"], ["urgent", "normal"], list(LANES)])
        organizations = self.random.choice([0, 0, 1, 3])
        for number in range(organizations):
            self.add_organization(f"o{number}")
        for number in range(self.random.randint(2, 8)):
            self.add_user(f"u{number}", f"o{self.random.randrange(organizations)}" if organizations else None)

    def limits(self) -> tuple[float, int | None]:
        return self.random.choice([0.5, 1, 1, 1, 2, 4]), self.random.choice([None, None, 1, 2])

    def add_organization(self, name: str) -> None:
        weight, cap = self.limits()
        self.order.add_organization(name, weight, cap)
        self.queue.organization(name).set_weight(weight, now=NOW)
        self.queue.organization(name).set_max_running(cap, now=NOW)

    def add_user(self, name: str, organization: str | None) -> None:
        weight, cap = self.limits()
        organization = organization if self.random.random() < 0.7 else None
        self.order.add_user(name, organization, weight, cap)
        user = self.queue.user(name)
        user.set_organization(organization, now=NOW)
        user.set_weight(weight, now=NOW)
        user.set_max_running(cap, now=NOW)

    def step(self) -> None:
        actions = [self.push, self.push, self.serve, self.serve, self.serve, self.serve, self.finish, self.finish]
        self.random.choice([*actions, self.finish, self.give_back, self.pause])()

    def push(self) -> None:
        name, number = self.random.choice(list(self.order.users)), self.random.choice([1, 1, 2, 10])
        lane = self.random.choice(self.lanes)
        self.queue.push_batch([task(name, lane=lane) for _ in range(number)], now=NOW)
        self.order.push(name, lane, number)

    def pause(self) -> None:
        user = self.random.choice(list(self.order.users.values()))
        handle = self.queue.user(user.name)
        if user.is_paused:
            handle.resume(now=NOW)
        else:
            handle.pause(now=NOW)
        self.order.pause(user.name, not user.is_paused)

    def serve(self) -> None:
        if len(self.running) == self.slots:
            self.finish()
        leases = self.queue.pop_batch(1, "w", now=NOW)
        start = self.order.start()
        found = [(lease.user_id, lease.lane) for lease in leases]
        assert found == ([(start.user.name, start.lane)] if start else [])
        if start:
            self.running.append((leases[0], start))

    def ended(self) -> tuple[Lease, Start] | None:
        return self.running.pop(self.random.randrange(len(self.running))) if self.running else None

    def finish(self) -> None:
        if ended := self.ended():
            self.queue.finish(ended[0], now=NOW)
            self.order.finish(ended[1])

    def give_back(self) -> None:
        if ended := self.ended():
            self.queue.release(ended[0], now=NOW)
            self.order.give_back(ended[1])


seeds = given(seed=st.integers(0, 2**32))
runs = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@seeds
@runs
def test_tasks_start_in_the_order_of_the_oracle(redis: Redis, seed: int) -> None:
    world = World(redis, seed)
    for _ in range(200):
        world.step()
    assert world.queue.check_invariants() == []
