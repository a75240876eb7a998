"""Organizations with a guaranteed share of the worker time, in simulated time."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task

from .making import join, members

AHEAD = 10
"""The seconds of worker time by which an organization may be behind its share."""


class Slots:
    """Slots that run tasks of given lengths. Times are in seconds since the beginning."""

    def __init__(self, redis: Redis, slots: int = 4) -> None:
        self.queue = FairQueue(redis, config=QueueConfig(fair_by="time"))
        self.free, self.time = slots, 0.0
        self.running: list[tuple[float, int, Lease]] = []
        self.runs: list[tuple[str, float, float]] = []
        """Each run: its user, or the organization of a member, and its begin and end."""

    def guarantee(self, organization: str, share: float | None, size: int = 3) -> list[str]:
        join(self.queue, organization, *members(organization, size))
        self.queue.organization(organization).set_share(share, now=NOW + self.time)
        return members(organization, size)

    def push(self, users: list[str], length: float, tasks: int, lane: Lane = "normal") -> None:
        some = [task(user, lane=lane, payload=length) for user in users for _ in range(tasks)]
        self.queue.push_batch(some, now=NOW + self.time)

    def run_until(self, end: float) -> None:
        while True:
            leases = self.queue.pop_batch(self.free, "w", lease=1e6, now=NOW + self.time) if self.free else []
            for lease in leases:
                heapq.heappush(self.running, (self.time + lease.payload, lease.token, lease))
                self.runs.append((lease.user_id.partition(".")[0], self.time, self.time + lease.payload))
            self.free -= len(leases)
            if not self.running or self.running[0][0] > end:
                self.time = end
                return
            self.time, _, lease = heapq.heappop(self.running)
            self.free += 1
            self.queue.settle([Outcome.finish(lease, took=lease.payload)], now=NOW + self.time)

    def get_busy_seconds(self, begin: float, end: float) -> Counter[str]:
        busy = Counter[str]()
        for name, start, stop in self.runs:
            if (seconds := min(stop, end) - max(start, begin)) > 0:
                busy[name] += seconds  # type: ignore[assignment]
        return busy

    def get_share(self, name: str, begin: float, end: float) -> float:
        busy = self.get_busy_seconds(begin, end)
        return busy[name] / busy.total()

    def get_largest_deficit(self, name: str, share: float, begin: float, end: float) -> float:
        """Return by how many seconds its worker time is below its share, in the worst period between two moments."""
        largest = highest = level = 0.0
        for second in range(int(begin), int(end)):
            busy = self.get_busy_seconds(second, second + 1)
            level += share * busy.total() - busy[name]
            highest = min(highest, level)
            largest = max(largest, level - highest)
        return largest


def names(number: int) -> list[str]:
    return [f"u{index}" for index in range(number)]


@pytest.mark.thorough
@pytest.mark.parametrize(("own", "others"), [(1.0, 1.0), (0.1, 3.0), (5.0, 0.5)])
def test_an_organization_gets_its_share_in_each_period_among_a_hundred_users(
    redis: Redis, own: float, others: float
) -> None:
    slots = Slots(redis)
    slots.push(names(100), others, 10)
    slots.run_until(20)
    slots.push(slots.guarantee("acme", 0.2), own, int(60 / own))
    slots.run_until(150)
    assert slots.get_largest_deficit("acme", 0.2, 20, 150) <= AHEAD + max(own, others)
    assert 0.18 <= slots.get_share("acme", 30, 150) <= 0.24
    assert slots.queue.check_invariants() == []


def test_a_thousand_users_that_arrive_take_no_time_from_a_guaranteed_share(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(["old"], 1.0, 200)
    slots.push(slots.guarantee("acme", 0.2), 1.0, 100)
    slots.run_until(40)
    assert slots.get_share("acme", 0, 40) == pytest.approx(0.5, abs=0.05)
    slots.push(names(1000), 1.0, 1)
    slots.run_until(160)
    assert slots.get_largest_deficit("acme", 0.2, 0, 160) <= AHEAD + 1
    assert slots.get_share("acme", 80, 160) == pytest.approx(0.2, abs=0.02)


def test_users_next_to_a_guaranteed_share_get_equal_time(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(names(10), 1.0, 100)
    slots.push(slots.guarantee("acme", 0.6), 1.0, 200)
    slots.run_until(120)
    busy = slots.get_busy_seconds(0, 120)
    assert slots.get_share("acme", 0, 120) == pytest.approx(0.6, abs=0.03)
    assert max(busy[user] for user in names(10)) - min(busy[user] for user in names(10)) <= 2


def test_members_share_the_guaranteed_time_equally(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(names(20), 1.0, 50)
    slots.push(slots.guarantee("acme", 0.5, 4), 1.0, 100)
    started = Counter[str]()
    for _ in range(200):
        leases = slots.queue.pop_batch(4, "w", now=NOW)
        slots.queue.settle([Outcome.finish(lease, took=1.0) for lease in leases], now=NOW)
        started.update(lease.user_id for lease in leases)
    of_members = [started[member] for member in members("acme", 4)]
    assert max(of_members) - min(of_members) <= 1
    assert sum(of_members) == pytest.approx(400, abs=20)


def test_two_organizations_that_are_guaranteed_nine_tenths_together_both_get_their_shares(redis: Redis) -> None:
    slots = Slots(redis, 8)
    slots.push(names(50), 1.0, 10)
    slots.push(slots.guarantee("acme", 0.5), 0.5, 800)
    slots.push(slots.guarantee("globex", 0.4), 2.0, 160)
    slots.run_until(100)
    for name, share in (("acme", 0.5), ("globex", 0.4)):
        assert slots.get_largest_deficit(name, share, 0, 98) <= AHEAD + 2
        assert slots.get_share(name, 10, 98) == pytest.approx(share, abs=0.03)
    assert len(slots.get_busy_seconds(0, 98)) > 20


def test_a_share_takes_nothing_from_an_organization_whose_weight_gives_it_more(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(["u0"], 1.0, 300)
    slots.push(slots.guarantee("acme", 0.2), 1.0, 100)
    slots.queue.organization("acme").set_weight(3, now=NOW)
    slots.run_until(75)
    assert slots.get_share("acme", 0, 75) == pytest.approx(0.75, abs=0.03)


def test_an_organization_without_tasks_costs_the_others_nothing(redis: Redis) -> None:
    slots = Slots(redis)
    idle = slots.guarantee("acme", 0.2)
    slots.push(names(2), 1.0, 200)
    pop(slots.queue)
    before = commands(redis, lambda: slots.queue.pop("w", now=NOW))
    slots.queue.organization("acme").set_share(None, now=NOW)
    assert commands(redis, lambda: slots.queue.pop("w", now=NOW)) == before
    slots.queue.organization("acme").set_share(0.2, now=NOW)
    slots.run_until(40)
    assert slots.get_busy_seconds(0, 40).total() == pytest.approx(4 * 40, abs=8)
    slots.push(idle, 1.0, 100)  # nothing was saved up meanwhile
    slots.run_until(60)
    assert slots.get_share("acme", 40, 60) == pytest.approx(1 / 3, abs=0.1)


def test_a_share_that_ends_leaves_no_debt_of_more_than_ten_seconds(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(names(4), 1.0, 400)
    slots.push(slots.guarantee("acme", 0.9), 1.0, 400)
    slots.run_until(60)
    slots.queue.organization("acme").set_share(None, now=NOW + slots.time)
    slots.run_until(110)
    assert slots.get_share("acme", 60, 80) <= 0.15
    assert slots.get_share("acme", 80, 110) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("lane", ["urgent", "bulk"])
def test_tasks_of_every_lane_get_the_share(redis: Redis, lane: Lane) -> None:
    slots = Slots(redis)
    slots.push(names(50), 1.0, 10)
    slots.push(slots.guarantee("acme", 0.3), 1.0, 60, lane)
    slots.run_until(80)
    assert slots.get_share("acme", 10, 78) == pytest.approx(0.3, abs=0.05 if lane == "bulk" else 0.2)
    assert slots.get_largest_deficit("acme", 0.3, 0, 78) <= AHEAD + 1
    assert slots.queue.check_invariants() == []


def test_a_limit_of_running_tasks_holds_for_a_guaranteed_share_too(redis: Redis) -> None:
    slots = Slots(redis)
    slots.push(names(10), 1.0, 40)
    slots.push(slots.guarantee("acme", 0.9), 1.0, 40)
    slots.queue.organization("acme").set_max_running(1, now=NOW)
    slots.run_until(40)
    assert slots.get_share("acme", 1, 40) == pytest.approx(0.25, abs=0.03)


def test_each_shard_gives_an_organization_its_share(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", shards=3)
    queue.organization("acme").set_share(0.5, now=NOW)
    join(queue, "acme", *members("acme", 12))
    queue.push_batch([task(user) for user in (*members("acme", 12), *names(60)) for _ in range(20)], now=NOW)
    started = Counter[str]()
    for _ in range(300):
        for lease in queue.pop_batch(1, "w", now=NOW):
            started[lease.user_id.partition(".")[0]] += 1
            queue.finish(lease, now=NOW)
    assert started["acme"] >= 0.45 * 300 - 3 * AHEAD
    assert queue.organization("acme").stats().share == 0.5


class TestSetting:
    def test_more_than_nine_tenths_together_are_refused_with_the_names_and_the_sum(self, queue: FairQueue) -> None:
        queue.organization("acme").set_share(0.5, now=NOW)
        queue.organization("globex").set_share(0.4, now=NOW)
        with pytest.raises(TaskValidationError) as refused:
            queue.organization("initech").set_share(0.1, now=NOW)
        for part in ("0.9 together, got 1:", "'initech' 0.1", "'acme' 0.5", "'globex' 0.4", "set_share()"):
            assert part in str(refused.value)
        assert queue.organization("initech").stats().share is None
        assert queue.organizations().items == ["acme", "globex"]
        queue.organization("acme").set_share(0.3, now=NOW)
        queue.organization("initech").set_share(0.1, now=NOW)
        queue.organization("globex").set_share(None, now=NOW)
        queue.organization("acme").set_share(0.8, now=NOW)
        assert queue.check_invariants() == []

    @pytest.mark.parametrize("share", [0, 0.001, 0.91, 1, float("nan"), "0.2", True])
    def test_a_wrong_share_is_refused(self, queue: FairQueue, share: Any) -> None:
        with pytest.raises(TaskValidationError, match=r"share must be a number from 0.01 to 0.9, as 0.2"):
            queue.organization("acme").set_share(share)

    def test_a_removed_share_leaves_no_keys_or_fields(self, queue: FairQueue, redis: Redis) -> None:
        join(queue, "acme", "a")
        push_many(queue, "a", 2)
        queue.organization("acme").set_share(0.2, now=NOW)
        pop(queue)
        queue.organization("acme").set_share(None, now=NOW)
        assert queue.check_invariants() == []
        assert not redis.exists("fq:{default:0}:guaranteed")
        assert {b"share", b"owed", b"owed_from"}.isdisjoint(redis.hkeys("fq:{default:0}:group:acme"))

    def test_an_organization_with_a_share_alone_is_kept(self, queue: FairQueue) -> None:
        queue.organization("acme").set_share(0.2, now=NOW)
        join(queue, "acme", "a")
        join(queue, None, "a")
        stats = queue.organization("acme").stats()
        assert (stats.share, stats.is_known) == (0.2, True)


DAMAGE = {
    "a lost registry": lambda redis, p: redis.delete(p + "guaranteed"),
    "a wrong number of those that wait": lambda redis, p: redis.hset(p + "stats", "guaranteed", 5),
    "one without a mark that it waits": lambda redis, p: redis.hdel(p + "group:acme", "owed_from"),
    "one in the registry without a record": lambda redis, p: redis.zadd(p + "guaranteed", {"nobody": 0}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_repair_restores_guaranteed_shares(queue: FairQueue, redis: Redis, damage: str) -> None:
    queue.organization("acme").set_share(0.2, now=NOW)
    queue.organization("globex").set_share(0.3, now=NOW)
    join(queue, "acme", "a")
    push_many(queue, "a", 3)
    pop(queue)
    assert queue.check_invariants() == []
    DAMAGE[damage](redis, "fq:{default:0}:")
    redis.hdel("fq:{default:0}:stats", "revision")
    assert queue.check_invariants() != []
    queue.repair(now=NOW)
    assert queue.check_invariants() == []
    with pytest.raises(TaskValidationError, match=r"'globex' 0\.3"):
        queue.organization("acme").set_share(0.7, now=NOW)
