"""A simulation of slots and users with work, in random steps. It records the service of each user."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count

from redis import Redis

from django_fairque.engine.model.ids import Users
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue

from .conftest import NOW, task
from .shares import Shares

LENGTHS: list[list[float]] = [[0.1], [1.0], [10.0], [0.1, 10.0], [0.1] * 9 + [30.0]]
"""Seconds that the tasks of one user take, one of these each time: all alike, or so different that no guess is right."""
LONGEST_STEP = 3.0
"""Seconds until the next thing happens."""


@dataclass
class Running:
    ends: float
    order: int
    lease: Lease
    begun: float
    counts: bool

    def __lt__(self, other: Running) -> bool:
        return (self.ends, self.order) < (other.ends, other.order)


class World:
    """One run: whatever is chosen follows from its seed."""

    def __init__(self, redis: Redis, seed: int, fair_by: str, shards: int = 1) -> None:
        redis.flushall()
        self.random = chance = random.Random(seed)
        self.queue = FairQueue(redis, "default", QueueConfig.model_validate({"fair_by": fair_by, "shards": shards}))
        self.at_once = 1 if shards > 1 else 1000
        """Tasks asked for in one call: of many at once one shard gives more before it is another's turn."""
        self.slots = chance.choice([1, 2, 4, 8, 16])
        self.users = [f"u{number}" for number in range(chance.randint(3, 6))]
        self.weights = {user: chance.choice([1, 1, 1, 2, 4]) for user in self.users}
        self.lengths = {user: chance.choice(LENGTHS) for user in self.users}
        for user, weight in self.weights.items():
            self.queue.user(user).set_weight(weight, now=NOW)
        self.shares = Shares(self.weights, fair_by)
        self.running: list[Running] = []
        self.now, self.order = NOW, count()

    def steps(self, number: int) -> Iterator[int]:
        """Each begins with new tasks of somebody, perhaps, and ends when something happens next."""
        for step in range(number):
            if self.random.random() < 0.12:
                self.push()
            yield step
            self.wait()

    def push(self) -> None:
        user, number = self.random.choice(self.users), self.random.choice([1, 3, 40, 200])
        self.queue.push_batch([task(user) for _ in range(number)], now=self.now)
        self.shares.push(user, number)

    def give_back(self) -> None:
        back = self.random.sample(self.running, self.random.randint(0, len(self.running)))
        for run in back:
            self.running.remove(run)
            self.shares.release(run.lease.user_id, run.begun)
        heapq.heapify(self.running)
        self.queue.settle([Outcome.release(run.lease) for run in back], now=self.now)

    def serve(self, users: Users = "*", steal: Users = (), *, but: Users = ()) -> None:
        """Fill the free slots; what is started of the users in ``but`` does not count."""
        while free := self.slots - len(self.running):
            some = min(free, self.at_once)
            leases = self.queue.pop_batch(some, "w", users, steal, lease=1e6, now=self.now)
            self._begin(leases, but)
            if len(leases) < some:
                return

    def _begin(self, leases: Iterable[Lease], but: Users) -> None:
        for lease in leases:
            counts = lease.user_id not in but
            if counts:
                self.shares.start(lease.user_id, self.now)
            else:
                self.shares.leave(lease.user_id)
            ends = self.now + self.random.choice(self.lengths[lease.user_id])
            heapq.heappush(self.running, Running(ends, next(self.order), lease, self.now, counts))

    def run_with_workers_for(self, user: str, steps: int) -> None:
        """Workers that prefer one user, or serve only this one, beside some that serve everybody, and it with them."""
        for _ in self.steps(steps):
            if self.random.random() < 0.6:
                self.serve([user], self.random.choice(["*", []]), but=[user])
            else:
                self.serve()
            self.shares.look(self.users, self.now)

    def run_for(self, users: Sequence[str], steps: int) -> None:
        """Workers for these users only."""
        for _ in self.steps(steps):
            self.serve(users)
            self.shares.look(users, self.now)

    def wait(self) -> None:
        """For the end of a task, or for something else to happen before it."""
        if not self.running or self.random.random() < 0.1:
            then = self.now + self.random.random() * LONGEST_STEP
            self.now = min([then, *(run.ends for run in self.running)])
            return
        ended = heapq.heappop(self.running)
        self.now = max(self.now, ended.ends)
        if ended.counts:
            self.shares.finish(ended.lease.user_id, ended.begun, self.now)
        self.queue.settle([Outcome.finish(ended.lease, took=self.now - ended.begun)], now=self.now)

    def bound(self, one: str, other: str) -> float:
        """Return how far apart these may get. Charged by tasks, it is one task of each. Charged by time, it is the
        longest task of each on every slot, and the error of a guess: the longest task of any user on every slot.
        """
        if self.shares.by == "tasks":
            return sum(1 / self.weights[user] for user in (one, other)) + 1e-9
        longest = {user: self.slots * max(self.lengths[user]) / self.weights[user] for user in self.users}
        return longest[one] + longest[other] + max(longest.values())

    def wait_of_newcomers(self) -> float:
        """Return how far behind the others a user may begin. Each newcomer follows the earlier ones by a task's time
        over the weights of all with work (docs/contributing/decisions/0032-newcomers-move-the-virtual-time.md).
        """
        task = 1 if self.shares.by == "tasks" else max(max(lengths) for lengths in self.lengths.values())
        totals = list(accumulate(sorted(self.weights.values())))
        return sum(task / total for total in totals[1:])

    def without(self, user: str) -> list[tuple[str, str]]:
        """All pairs of others."""
        return [pair for pair in self.shares.apart_at_first if user not in pair]

    def worst(self, pairs: Sequence[tuple[str, str]] | None = None, ahead: float = 0.0) -> float:
        """Return the largest distance between any two of these, as a multiple of their bound plus ``ahead``."""
        found = []
        for apart, more in ((self.shares.apart, ahead), (self.shares.apart_at_first, ahead + self.wait_of_newcomers())):
            chosen = apart if pairs is None else [pair for pair in pairs if pair in apart]
            found += [apart[pair] / (self.bound(*pair) + more) for pair in chosen]
        return max(found, default=0.0)
