"""Plays random worlds on one version of the package: ``python player.py URL``, with the version on ``PYTHONPATH``.

Prints the folder of the package. Then reads seeds, one a line, and prints for each world the ids of the tasks that started, in a
line for each world, as JSON. Uses only what both versions have: no lanes.
"""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING, Any

from redis import Redis

import django_fairque
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

NOW = 2_000_000_000.0
"""After any real clock, so that it is the engine's time."""
STEPS = 300
LEASE_SECONDS = 3_600.0
SLOTS = 40
SHORTEST = 0.001
"""Seconds that a task runs at least: shorter tasks share turns by a rule that is newer than lanes."""


class World:
    """One queue with users and organizations, which are drawn from the seed with everything that happens."""

    def __init__(self, redis: Redis, seed: int) -> None:
        redis.flushall()
        self.random = random.Random(seed)
        fair_by: Any = self.random.choice(["time", "tasks"])
        self.queue = FairQueue(redis, config=QueueConfig(fair_by=fair_by, retry_jitter=0))
        self.now = NOW
        self.pushed = 0
        self.running: list[Lease] = []
        self.starts: list[str] = []
        self.organizations = [f"o{number}" for number in range(self.random.choice([0, 0, 1, 3]))]
        for name in self.organizations:
            organization = self.queue.organization(name)
            organization.set_weight(self.draw_weight(), now=self.now)
            organization.set_max_running(self.draw_cap(), now=self.now)
        self.users: list[str] = []
        for _ in range(self.random.randint(2, 12)):
            self.add_user()
        self.actions = [self.push, self.push, self.fetch, *[self.settle] * 5, self.change, self.wait]

    def draw_weight(self) -> float:
        return self.random.choice([0.5, 1, 1, 1, 2, 4])

    def draw_cap(self) -> int | None:
        return self.random.choice([None, None, None, 1, 3])

    def add_user(self) -> None:
        name = f"u{len(self.users)}"
        self.users.append(name)
        if self.random.random() < 0.5:
            self.queue.user(name).set_weight(self.draw_weight(), now=self.now)
        if self.random.random() < 0.3:
            self.queue.user(name).set_max_running(self.draw_cap(), now=self.now)
        if self.random.random() < 0.1:
            self.queue.user(name).set_rate("5/s", burst=3, now=self.now)
        if self.organizations and self.random.random() < 0.6:
            self.queue.user(name).set_organization(self.random.choice(self.organizations), now=self.now)

    def play(self) -> list[str]:
        for _ in range(STEPS):
            self.random.choice(self.actions)()
        return self.starts

    def push(self) -> None:
        if self.random.random() < 0.2:
            self.add_user()
        users = self.random.choices(self.users, k=self.random.choice([1, 1, 2, 5]))
        most = self.random.choice([1, 1, 5, 40])
        tasks = [self.make_task(user) for user in users for _ in range(self.random.randint(1, most))]
        self.random.shuffle(tasks)
        self.queue.push_batch(tasks, now=self.now)

    def make_task(self, user: str) -> Task:
        self.pushed += 1
        priority = self.random.choice([1, 2, 3, 3, 3, 3, 3, 4, 5, 6])
        due = self.now + self.random.random() * 3 if self.random.random() < 0.05 else None
        return Task.create(user, priority, None, task_id=f"t{self.pushed}", execute_after=due, max_retries=1)

    def note(self, leases: list[Lease]) -> None:
        self.running += leases
        self.starts += [lease.task_id for lease in leases]

    def fetch(self) -> None:
        number = min(self.random.choice([1, 2, 4, 8, 16]), SLOTS - len(self.running))
        if number <= 0:
            return
        chosen: Any = "*" if self.random.random() < 0.8 else self.random.sample(self.users, 2)
        steal: Any = "*" if chosen != "*" and self.random.random() < 0.5 else ()
        self.note(self.queue.pop_batch(number, "w", chosen, steal, lease=LEASE_SECONDS, now=self.now))

    def settle(self) -> None:
        self.random.shuffle(self.running)
        ended = self.running[: self.random.randint(0, 16)]
        self.running = self.running[len(ended) :]
        number = min(self.random.choice([0, 1, 2, 4, 8, 16]), SLOTS - len(self.running))
        settled = self.queue.settle(
            [self.end(lease) for lease in ended], number, worker="w", lease=LEASE_SECONDS, now=self.now
        )
        self.note(list(settled.leases))

    def end(self, lease: Lease) -> Outcome:
        took = (
            SHORTEST
            + self.random.choice([0.0, 0.01, 0.1, 1.0]) * self.random.random()
            + self.random.choice([0, 0, 0, 5])
        )
        chance = self.random.random()
        if chance < 0.1:
            return Outcome.release(lease)
        if chance < 0.2:
            return Outcome.fail(lease, "no", delay=self.random.choice([None, 1.0]), took=took)
        return Outcome.finish(lease, took=took)

    def change(self) -> None:
        """Change a user, an organization or the queue, for which users leave the ring or come back."""
        user = self.queue.user(self.random.choice(self.users))
        some: list[Any] = [user, *map(self.queue.organization, self.organizations)]
        chance, one = self.random.random(), self.random.choice(some)
        if chance < 0.3:
            one.pause(now=self.now)
        elif chance < 0.7:
            one.resume(now=self.now)
        elif chance < 0.8:
            one.set_max_running(self.draw_cap(), now=self.now)
        elif chance < 0.9:
            one.set_weight(self.draw_weight(), now=self.now)
        elif self.pushed:
            self.queue.cancel(f"t{self.random.randint(1, self.pushed)}", now=self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.001, 0.1, 1.0, 10.0])
        self.queue.sweep(now=self.now)


def main() -> None:
    redis = Redis.from_url(sys.argv[1])
    print(django_fairque.__file__, flush=True)
    for line in sys.stdin:
        print(json.dumps(World(redis, int(line)).play()), flush=True)


if __name__ == "__main__":
    main()
