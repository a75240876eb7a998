"""The bounds of the rule for lanes in a queue that is fair by time: shares of the worker time, and waits of urgent tasks.

The same cases as in the simulation by which the rule was chosen, with fewer users.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

from .oracle import LANES, LEAST


class Slots:
    """Some slots that run tasks of given lengths. Times are in seconds since the beginning."""

    def __init__(self, redis: Redis, slots: int = 16) -> None:
        self.queue = FairQueue(redis, config=QueueConfig(fair_by="time"))
        self.free, self.time = slots, 0.0
        self.running: list[tuple[float, int, Lease]] = []
        self.waits: list[tuple[Lane, str, float]] = []
        self.busy = Counter[str]()
        """The worker time of each lane and of each user, of tasks that have ended."""
        self.queued = Counter[Lane]()
        self.gained: dict[Lane, float] = dict.fromkeys(LEAST, 0.0)
        """The worker time of a lane minus its least share of that of all lanes, since the lane began to wait."""
        self.most_gained: dict[Lane, float] = dict.fromkeys(LEAST, 0.0)
        self.missed: dict[Lane, float] = dict.fromkeys(LEAST, 0.0)
        """By how much the worker time of a lane was below its least share, in the worst of all times in which it waited."""

    def pass_time(self, until: float) -> None:
        running = Counter(lease.lane for _, _, lease in self.running)
        for lane, least in LEAST.items():
            if not self.queued[lane]:
                self.gained[lane] = self.most_gained[lane] = 0
                continue
            self.gained[lane] += (running[lane] - least * running.total()) * (until - self.time)
            self.most_gained[lane] = max(self.most_gained[lane], self.gained[lane])
            self.missed[lane] = max(self.missed[lane], self.most_gained[lane] - self.gained[lane])
        self.time = until

    def push(self, user: str, lane: Lane, length: float, tasks: int = 1) -> None:
        some = [task(user, lane=lane, payload=length) for _ in range(tasks)]
        self.queued[lane] += tasks
        self.queue.push_batch(some, now=NOW + self.time)

    def run_until(self, end: float) -> None:
        while True:
            leases = self.queue.pop_batch(self.free, "w", lease=1e6, now=NOW + self.time) if self.free else []
            for lease in leases:
                self.queued[lease.lane] -= 1
                self.waits.append((lease.lane, lease.user_id, NOW + self.time - lease.task.created_at))
                heapq.heappush(self.running, (self.time + lease.payload, lease.token, lease))
            self.free -= len(leases)
            if not self.running or self.running[0][0] > end:
                self.pass_time(end)
                return
            self.pass_time(self.running[0][0])
            lease = heapq.heappop(self.running)[2]
            self.free += 1
            self.queue.settle([Outcome.finish(lease, took=lease.payload)], now=NOW + self.time)
            self.busy.update({lease.lane: lease.payload, lease.user_id: lease.payload})

    def share(self, lane: Lane) -> float:
        return self.busy[lane] / sum(self.busy[name] for name in ("urgent", "normal", "bulk"))


def nightly(slots: Slots, lane: Lane, users: int, length: float, seconds: int) -> list[float]:
    """A task of this length for each user, and a short urgent task of one of them twice a second. Return the waits of these."""
    chance = random.Random(7)
    for user in range(users):
        slots.push(f"u{user}", lane, length)
    mails = 0
    while slots.time < seconds:
        slots.run_until(slots.time + chance.expovariate(2.0))
        slots.push(f"u{chance.randrange(users)}", "urgent", 0.2)
        mails += 1
    slots.run_until(slots.time + 60)
    waits = sorted(wait for name, _, wait in slots.waits if name == "urgent")
    assert len(waits) == mails
    assert waits[0] >= 0
    return waits


def test_urgent_tasks_do_not_wait_for_a_nightly_job(redis: Redis) -> None:
    waits = nightly(Slots(redis), "bulk", 1000, 1.0, 55)
    assert waits[len(waits) // 2] <= 0.3
    assert waits[int(len(waits) * 0.99)] <= 1.1


def test_urgent_tasks_start_during_a_job_of_long_tasks_in_lane_normal(redis: Redis) -> None:
    waits = nightly(Slots(redis), "normal", 200, 30.0, 200)
    assert waits[-1] <= 45


@pytest.mark.thorough
def test_each_lane_gets_its_least_share_of_the_time(redis: Redis) -> None:
    """Urgent tasks for more than all slots, of many users: their lane leaves half of the time, and a twentieth to bulk."""
    for length in (1.0, 12.0):
        redis.flushall()
        slots, chance = Slots(redis), random.Random(3)
        for lane, users in (("normal", 20), ("bulk", 5)):
            for user in range(users):
                slots.push(f"{lane}{user}", lane, length, 300)  # type: ignore[arg-type]
        while slots.time < 150 * length**0.5:
            slots.run_until(slots.time + 0.5)
            for _ in range(10):
                slots.push(f"urgent{chance.randrange(2000)}", "urgent", 1.0)
        assert 0.45 <= slots.share("normal") <= 0.55
        assert 0.03 <= slots.share("bulk") <= 0.07


@pytest.mark.thorough
def test_a_user_with_only_urgent_tasks_gets_as_much_time_as_other_users(redis: Redis) -> None:
    slots = Slots(redis)
    for user in range(10):
        slots.push(f"u{user}", "normal" if user else "urgent", 1.0, 600)
    slots.run_until(300)
    others = [slots.busy[f"u{user}"] for user in range(1, 10)]
    assert 0.95 <= slots.busy["u0"] / (sum(others) / 9) <= 1.05
    assert slots.queue.check_invariants() == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_lane_gets_its_least_share_over_any_time_in_which_it_waits(redis: Redis, seed: int) -> None:
    """Except for 10 s, its longest task, and its share of the tasks that run already when it begins to wait."""
    chance, number = random.Random(seed), 8
    slots, lengths = Slots(redis, number), [[0.2, 1.0, 5.0], [2.0, 0.5], [1.0]][seed]
    load = {lane: chance.choice([0.3, 1.0]) for lane in LANES}
    for _ in range(150):
        slots.run_until(slots.time + sum(lengths) / len(lengths) / number)
        for lane in LANES:
            if chance.random() < load[lane]:
                slots.push(f"u{chance.randrange(20)}", lane, chance.choice(lengths), chance.choice([1, 3]))
    for lane, least in LEAST.items():
        assert 0 < slots.missed[lane] <= 10 + (1 + least * number) * max(lengths)
