"""Users are served alike, whatever shards they and others live on."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Literal

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.sharding.shard_scheduler import FairShardOrder, ShardScheduler, Window
from tests.engine.conftest import NOW, pop, task
from tests.engine.sharding.sharded import ONE, THREE, TWO, users_of


class TestFairness:
    def test_users_of_a_full_shard_and_of_a_nearly_empty_one_are_served_equally(self, queue: FairQueue) -> None:
        many, few = users_of(0, 20), users_of(1, 2)
        queue.push_batch([task(user) for user in (*many, *few) for _ in range(40)], now=NOW)
        served = Counter(queue.pop_batch(1, "w", now=NOW)[0].user_id for _ in range(22 * 20))
        assert min(served.values()) >= 19
        assert max(served.values()) <= 21

    @pytest.mark.parametrize("batch", [10, *(pytest.param(batch, marks=pytest.mark.slow) for batch in (3, 40))])
    def test_users_of_uneven_shards_are_served_equally_in_batches(self, queue: FairQueue, batch: int) -> None:
        users = [*users_of(0, 20), *users_of(1, 2), *users_of(2, 5)]
        queue.push_batch([task(user) for user in users for _ in range(100)], now=NOW)
        served = Counter(
            lease.user_id for _ in range(27 * 40 // batch) for lease in queue.pop_batch(batch, "w", now=NOW)
        )
        shares = [served[user] for user in users]
        jain = sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))
        assert jain > 0.97

    def test_an_organization_on_two_shards_is_an_organization_on_each(self, queue: FairQueue) -> None:
        here, there = users_of(0, 3), users_of(1, 3)
        for user in (*here[:2], *there[:2]):
            queue.user(user).set_organization("g", now=NOW)
        queue.organization("g").set_max_running(30, now=NOW)
        assert queue.organizations().items == ["g"]
        queue.push_batch([task(user) for user in (*here, *there) for _ in range(60)], now=NOW)
        served = Counter(queue.pop_batch(1, "w", now=NOW)[0].user_id for _ in range(80))
        of_organization = [served[user] for user in (*here[:2], *there[:2])]
        assert sum(of_organization) == pytest.approx(40, abs=2)
        assert max(of_organization) - min(of_organization) <= 2
        stats = queue.organization("g").stats()
        assert (stats.members, stats.members_ready, stats.running) == (4, 4, sum(of_organization))
        assert set(queue.organization("g").members().items) == {*here[:2], *there[:2]}
        queue.organization("g").pause(now=NOW)
        assert {lease.user_id for lease in queue.pop_batch(30, "w", now=NOW)} == {here[2], there[2]}
        assert queue.get_stats().users_ready == 6
        assert sum(shard.users_ready for shard in queue.get_shard_stats()) == 6

    def test_a_newcomer_on_an_idle_shard_is_next(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in users_of(0, 5) for _ in range(50)], now=NOW)
        for _ in range(60):
            queue.pop("w", now=NOW)
        queue.push(task(TWO), now=NOW)
        assert queue.pop("w", now=NOW).user_id == TWO  # type: ignore[union-attr]

    def test_a_shard_that_was_idle_has_no_claim_on_its_unused_time(self, queue: FairQueue) -> None:
        queue.push_batch([task(TWO), *(task(ONE) for _ in range(200))], now=NOW)
        for _ in range(100):
            queue.pop("w", now=NOW)
        queue.push_batch([task(TWO) for _ in range(100)], now=NOW)
        served = Counter(queue.pop("w", now=NOW).user_id for _ in range(40))  # type: ignore[union-attr]
        assert abs(served[ONE] - served[TWO]) <= 2

    def test_a_shard_whose_user_comes_and_goes_gains_no_advantage(self, queue: FairQueue) -> None:
        there, order = queue.shards[1], ShardScheduler([FairShardOrder(2)])  # a worker's lanes use such a scheduler
        queue.push_batch([task(ONE) for _ in range(900)], now=NOW)
        queue.push(task(TWO), now=NOW)
        served: Counter[str] = Counter()
        for _ in range(300):
            index = order.next([0, 1])
            window = order.window(index, [1 - index])
            settled = queue.shards[index].settle([], 2, worker="w", window=window, now=NOW)
            order.record_reply(index, settled)
            for lease in settled.leases:
                served[lease.user_id] += 1
                queue.finish(lease, now=NOW)
                if lease.user_id == TWO:
                    there.push(task(TWO), now=NOW)
        assert served[TWO] <= 1.05 * sum(served.values()) / 2

    def test_a_worker_for_a_list_of_users_serves_them_on_all_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        assert [lease.user_id for lease in queue.pop_batch(5, "w", [TWO], now=NOW)] == [TWO]
        assert {lease.user_id for lease in queue.pop_batch(5, "w", [TWO], [ONE], now=NOW)} == {ONE}


SHORT, LONG = 0.01, 2.0


class Site:
    """One slot that serves a queue of three shards: users of tasks of ``SHORT`` seconds, but for ``long`` one."""

    def __init__(self, redis: Redis, shards: int, fair_by: Literal["time", "tasks"] = "time") -> None:
        self.queue = FairQueue(redis, config=QueueConfig(shards=shards, fair_by=fair_by))
        self.now = NOW
        self.took = {A: LONG}
        self.got: Counter[str] = Counter()
        """Worker time by user."""

    def push(self, user: str, count: int = 1) -> None:
        self.queue.push_batch([task(user) for _ in range(count)], now=self.now)

    def run_one(self) -> str:
        lease = pop(self.queue, self.now, lease=3600)
        took = self.took.get(lease.user_id, SHORT)
        self.now += took
        self.queue.finish(lease, took=took, now=self.now)
        self.got[lease.user_id] += round(took * 100)
        return lease.user_id

    def run_until(self, user: str) -> int:
        """Run tasks until one of this user has run, and return how many ran."""
        return next(count for count in itertools.count(1) if self.run_one() == user)


A, *NEIGHBORS_OF_A = users_of(0, 3, shards=3)
ELSEWHERE = users_of(1, 3, shards=3)


@pytest.fixture
def site(redis: Redis) -> Site:
    """A user of long tasks that was just served, and three of short ones on another shard, all with much to do."""
    site = Site(redis, shards=3)
    for user in (A, *ELSEWHERE):
        site.push(user, 1000)
    for _ in range(100):
        site.run_one()
    site.run_until(A)
    return site


class TestNextToAUserOfLongTasks:
    """Its shard's virtual time stands still while the others', and their users, go on."""

    @pytest.mark.parametrize("passed", [0, 400])
    def test_a_newcomer_is_next_and_gets_only_its_share(self, site: Site, passed: int) -> None:
        for _ in range(passed):
            site.run_one()
        site.push(NEIGHBORS_OF_A[0], 300)
        site.got.clear()
        assert site.run_until(NEIGHBORS_OF_A[0]) == 1
        for _ in range(200):
            site.run_one()
        shares = [site.got[user] for user in (NEIGHBORS_OF_A[0], *ELSEWHERE)]
        assert max(shares) - min(shares) <= 2

    def test_a_returning_user_gets_no_unused_share(self, site: Site) -> None:
        """The user was a little ahead of its shard's virtual time, which has not moved since."""
        back = NEIGHBORS_OF_A[0]
        site.push(back, 3)
        for _ in range(400):
            site.run_one()
        site.push(back, 300)
        site.got.clear()
        for _ in range(200):
            site.run_one()
        shares = [site.got[user] for user in (back, *ELSEWHERE)]
        assert max(shares) - min(shares) <= 2

    def test_a_user_who_pushes_one_task_at_a_time_gains_nothing_next_to_long_tasks(self, site: Site) -> None:
        comes = NEIGHBORS_OF_A[0]
        site.got.clear()
        for _ in range(400):
            if not site.queue.get_queue_sizes(comes).total:
                site.push(comes)
            site.run_one()
        assert site.got[comes] <= 1.1 * max(site.got[user] for user in ELSEWHERE)

    def test_a_user_of_long_tasks_gets_its_share_of_time(self, site: Site) -> None:
        site.got.clear()
        start = site.now
        while site.now - start < 20:
            site.run_one()
        shares = [site.got[user] / 100 for user in (A, *ELSEWHERE)]
        assert max(shares) - min(shares) <= LONG + SHORT


@pytest.mark.parametrize("fair_by", ["time", "tasks"])
@pytest.mark.parametrize("seed", range(4))
def test_two_users_with_work_on_any_shards_differ_by_at_most_a_task(
    redis: Redis, seed: int, fair_by: Literal["time", "tasks"]
) -> None:
    """The bound of docs/explanation/fairness.md between users of any shards: of each a task, while both have work."""
    chance = random.Random(seed)
    site = Site(redis, shards=3, fair_by=fair_by)
    site.took = {
        name: chance.choice([0.01, 0.1, 1.0, 5.0]) for shard in range(3) for name in users_of(shard, 3, shards=3)
    }
    users = list(site.took)
    for user in users:
        site.push(user, 400)
    differences = {pair: [0.0] for pair in itertools.combinations(users, 2)}
    got: Counter[str] = Counter()
    for _ in range(400):
        user = site.run_one()
        got[user] += 1
        for (a, b), seen in differences.items():
            if user in (a, b):
                costs = [site.took[user] if fair_by == "time" else 1 for user in (a, b)]
                seen.append(got[a] * costs[0] - got[b] * costs[1])
    # Charges are guesses until the first task has ended: 0.1 s then.
    for (a, b), seen in differences.items():
        bound = sum(site.took[user] + 0.1 if fair_by == "time" else 1 for user in (a, b))
        assert max(seen) - min(seen) <= bound + 1e-6, (a, b)


def test_a_returning_shard_gets_no_missed_turns() -> None:
    turns = FairShardOrder(2)
    turns.record_served_tasks(0, 0.0, 1.0, 1)
    turns.record_served_tasks(1, 0.0, 1.0, 1)
    turns.seen(1, None)
    turns.record_served_tasks(0, 900.0, 901.0, 1)
    turns.record_served_tasks(1, 1.0, 2.0, 1)
    assert turns.turn(1) == pytest.approx(901, abs=1)


def test_a_shard_that_is_ahead_waits_for_the_others(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=3, fair_by="time"))
    queue.push_batch([task(A) for _ in range(5)], now=NOW)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.finish(lease, took=60, now=NOW)
    ((place, _),) = queue.shards[0].settle([], now=NOW).shard_heads
    assert place is not None
    held = queue.shards[0].settle([], 3, worker="w", window=Window(until=place - 1e6), now=NOW)
    assert (held.leases, held.shard_heads) == ([], ((place, 0),)), "the reply gives the shard's place"
    assert len(queue.shards[0].settle([], 1, worker="w", window=Window(until=place), now=NOW).leases) == 1
