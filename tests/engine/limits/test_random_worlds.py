"""No start exceeds a limit, and no worker is idle while a task could start, in random worlds with plans and lanes."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit, limit_id_of
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.plans import Plans
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.tokens import Rate

from .oracle import Person, Places, Work

PLANS: dict[str, tuple[int | None, Rate | None]] = {
    "": (None, None),
    "small weight=0.5 cap=1": (1, None),
    "large weight=4 cap=3": (3, None),
    "open weight=2": (None, None),
    "slow cap=2 rate=2 gap=500000 burst=1": (2, Rate(500_000, 1)),
    "metered rate=1 gap=1000000 burst=3": (None, Rate(1_000_000, 3)),
}
"""The texts of plans; the number of tasks that a user of each may run at once, and its rate."""


class World:
    """The engine and the model, which get the same calls."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.redis = redis
        self.random = random.Random(seed)
        config = QueueConfig(fair_by=self.random.choice(["tasks", "time"]), lease_seconds=1e6)
        self.queue = FairQueue(redis, config=config)
        self.plan_of: dict[str, str] = {}
        self.has_plans = self.random.random() < 0.5
        self.find_plans()
        self.has_explicit_cap: set[str] = set()
        self.places = Places()
        self.leases: dict[str, Lease] = {}
        self.now = NOW
        self.lanes = self.random.choice([("normal",), ("normal", "bulk"), LANES])
        kinds = self.random.choice([1, 2, 5])
        self.limits = [self.make_limit(number) for number in range(kinds)]
        for number in range(self.random.choice([0, 0, 2])):
            self.places.organizations[f"o{number}"] = Person(self.random.choice([None, 1, 2]))
            self.queue.organization(f"o{number}").set_max_running(self.places.organizations[f"o{number}"].cap, now=NOW)
            self.queue.organization(f"o{number}").set_share(self.random.choice([None, 0.1, 0.4]), now=NOW)
        for number in range(self.random.choice([2, 5, 30])):
            self.add_user(f"u{number}")

    def make_limit(self, number: int) -> TaskLimit:
        rate = self.random.random() < 0.3
        return TaskLimit(
            f"k{number}",
            None if rate and self.random.random() < 0.5 else self.random.choice([1, 1, 2, 4]),
            self.random.choice([500_000, 3_000_000]) if rate else None,
            self.random.choice([1, 3]) if rate else 1,
            self.random.random() < 0.4,
        )

    def add_user(self, name: str) -> None:
        organizations = [*self.places.organizations, None, None]
        person = Person(self.random.choice([None, None, 1, 2]), organization=self.random.choice(organizations))
        self.places.users[name] = person
        if person.cap is not None:
            self.has_explicit_cap.add(name)
        user = self.queue.user(name)
        user.set_max_running(person.cap, now=NOW)
        user.set_weight(self.random.choice([0.5, 1, 4]), now=NOW)
        if person.organization:
            user.set_organization(person.organization, now=NOW)

    def find_plans(self) -> None:
        """Let the queue look up the plans again, which it keeps for a minute."""
        if self.has_plans:
            self.queue.config.set_plans(Plans({}, lambda: "v1", lambda user: self.plan_of.get(user, "")))

    def change_plan(self) -> None:
        """The plan takes effect with the next push of the user."""
        self.plan_of[self.random.choice(list(self.places.users))] = self.random.choice(list(PLANS))
        self.now += 1
        self.find_plans()

    def set_cap(self) -> None:
        """Set a limit of a user, which no plan changes any more."""
        name, cap = self.random.choice(list(self.places.users)), self.random.choice([1, 2])
        self.queue.user(name).set_max_running(cap, now=self.now)
        self.places.users[name].cap = cap
        self.has_explicit_cap.add(name)

    def step(self) -> None:
        actions = [self.push, self.push, self.serve, self.serve, self.serve, self.end, self.end, self.give_back]
        changes = [self.change_plan, self.set_cap] if self.has_plans else []
        self.random.choice([*actions, *changes, self.cancel, self.pause, self.close, self.pass_time])()

    def push(self) -> None:
        user, lane = self.random.choice(list(self.places.users)), self.random.choice(self.lanes)
        tasks = []
        for _ in range(self.random.choice([1, 1, 3, 10])):
            limits = self.random.sample(self.limits, min(len(self.limits), self.random.choice([0, 1, 1, 1, 2, 4])))
            priority = self.random.choice([1, 3, 3, 6]) if lane == "normal" else 3
            expires = self.random.choice([None, None, None, 4])
            made = task(user, priority, lane=lane, limits=limits, expires=expires)
            tasks.append(made)
            expires_at = self.now + expires if expires else float("inf")
            self.places.queued[made.task_id] = Work(user, lane, tuple(limits), expires_at)
        self.queue.push_batch(tasks, now=self.now)
        if self.has_plans:
            cap, rate = PLANS[self.plan_of.get(user, "")]
            self.places.users[user].tokens.set_rate(rate, self.now)
            if user not in self.has_explicit_cap:
                self.places.users[user].cap = cap

    def serve(self) -> None:
        number = self.random.choice([1, 1, 4, 50])
        outcomes = []
        if self.leases and self.random.random() < 0.5:
            ended = self.random.choice(list(self.leases))
            outcomes = [Outcome.finish(self.leases.pop(ended), took=self.random.choice([0.01, 2.0]))]
            self.places.end(ended)
        leases = (
            self.queue.settle(outcomes, fetch=number, worker="w", now=self.now).leases
            if outcomes
            else (self.queue.pop_batch(number, "w", now=self.now))
        )
        for lease in leases:
            assert self.places.queued[lease.task_id].expires > self.now
            self.places.start(lease.task_id, self.now)
            self.leases[lease.task_id] = lease
        if self.drop_expired():
            self.serve_rest()
        elif len(leases) < number and self.places.startable(self.now):
            assert self.redis.exists("fq:{default:0}:wake")  # a place became free in the call: an idle worker takes it
            self.serve_rest(1)

    def serve_rest(self, calls: int = 10) -> None:
        """A call that has removed many expired tasks of a user leaves its other tasks to the next calls."""
        for _ in range(calls):
            for lease in self.queue.pop_batch(100, "w", now=self.now):
                self.places.start(lease.task_id, self.now)
                self.leases[lease.task_id] = lease
        assert self.places.startable(self.now) == []

    def drop_expired(self) -> int:
        """Forget the tasks that have expired, and return their number. They become dead letters sooner or later."""
        ended = [task_id for task_id, work in self.places.queued.items() if work.expires <= self.now]
        for task_id in ended:
            del self.places.queued[task_id]
        return len(ended)

    def take(self) -> Lease | None:
        return self.leases.pop(self.random.choice(list(self.leases))) if self.leases else None

    def end(self) -> None:
        if lease := self.take():
            self.queue.settle([Outcome.finish(lease)], now=self.now)
            self.places.end(lease.task_id)

    def give_back(self) -> None:
        if lease := self.take():
            self.queue.release(lease, now=self.now)
            self.places.end(lease.task_id, is_given_back=True)
            self.places.queued[lease.task_id].expires = float("inf")  # the task has started in time

    def cancel(self) -> None:
        if self.places.queued:
            task_id = self.random.choice(list(self.places.queued))
            self.queue.cancel(task_id, now=self.now)
            del self.places.queued[task_id]

    def pause(self) -> None:
        people = [*self.places.users.items(), *self.places.organizations.items()]
        name, person = self.random.choice(people)
        handle = self.queue.user(name) if name in self.places.users else self.queue.organization(name)
        if person.is_paused:
            handle.resume(now=self.now)
        else:
            handle.pause(now=self.now)
        person.is_paused = not person.is_paused

    def close(self) -> None:
        limit, user = self.random.choice(self.limits), self.random.choice(list(self.places.users))
        limit_id = limit_id_of(limit.key, user if limit.is_of_user else None)
        handle = self.queue.limit(limit.key, user if limit.is_of_user else None)
        if self.places.closed.pop(limit_id, 0) > self.now:
            handle.open(now=self.now)
        else:
            seconds = self.random.choice([1, 5])
            self.places.closed[limit_id] = self.now + seconds
            handle.close(until=seconds, now=self.now)

    def pass_time(self) -> None:
        self.now += self.random.choice([0.25, 1.0, 5.0])


seeds = given(seed=st.integers(0, 2**32))
runs = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@seeds
@runs
def test_a_task_starts_exactly_when_its_limits_allow_it(redis: Redis, seed: int) -> None:
    world = World(redis, seed)
    for number in range(150):
        world.step()
        if number % 30 == 0:
            assert world.queue.check_invariants() == []
    assert world.queue.check_invariants() == []
