"""Users are served alike, whatever shards they and others live on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.turns import Turns
from tests.engine.conftest import NOW, task

from .sharded import ONE, THREE, TWO, users_of

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue


class TestFairness:
    def test_users_of_a_full_shard_and_of_an_empty_one_are_served_alike(self, queue: FairQueue) -> None:
        many, few = users_of(0, 20), users_of(1, 2)
        queue.push_batch([task(user) for user in (*many, *few) for _ in range(40)], now=NOW)
        served = Counter(queue.pop_batch(1, "w", now=NOW)[0].user_id for _ in range(22 * 20))
        assert min(served.values()) >= 19
        assert max(served.values()) <= 21

    @pytest.mark.parametrize("batch", [3, 10, 40])
    def test_in_batches_too(self, queue: FairQueue, batch: int) -> None:
        users = [*users_of(0, 20), *users_of(1, 2), *users_of(2, 5)]
        queue.push_batch([task(user) for user in users for _ in range(100)], now=NOW)
        served = Counter(
            lease.user_id for _ in range(27 * 40 // batch) for lease in queue.pop_batch(batch, "w", now=NOW)
        )
        shares = [served[user] for user in users]
        jain = sum(shares) ** 2 / (len(shares) * sum(each * each for each in shares))
        assert jain > 0.97

    def test_a_group_on_two_shards_is_a_group_on_each(self, queue: FairQueue) -> None:
        here, there = users_of(0, 3), users_of(1, 3)
        for user in (*here[:2], *there[:2]):
            queue.user(user).set_group("g", now=NOW)
        queue.group("g").set_max_running(30, now=NOW)
        assert queue.groups().items == ["g"]
        queue.push_batch([task(user) for user in (*here, *there) for _ in range(60)], now=NOW)
        served = Counter(queue.pop_batch(1, "w", now=NOW)[0].user_id for _ in range(80))
        of_group = [served[user] for user in (*here[:2], *there[:2])]
        assert sum(of_group) == pytest.approx(40, abs=2)
        assert max(of_group) - min(of_group) <= 2
        stats = queue.group("g").stats()
        assert (stats.members, stats.members_ready, stats.running) == (4, 4, sum(of_group))
        assert set(queue.group("g").members().items) == {*here[:2], *there[:2]}
        queue.group("g").pause(now=NOW)
        assert {lease.user_id for lease in queue.pop_batch(30, "w", now=NOW)} == {here[2], there[2]}
        assert queue.get_stats().users_ready == 6
        assert sum(shard.users_ready for shard in queue.get_shard_stats()) == 6

    def test_a_newcomer_on_an_idle_shard_is_next(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in users_of(0, 5) for _ in range(50)], now=NOW)
        for _ in range(60):
            queue.pop("w", now=NOW)
        queue.push(task(TWO), now=NOW)
        assert queue.pop("w", now=NOW).user_id == TWO  # type: ignore[union-attr]

    def test_a_shard_is_not_owed_what_it_did_not_use(self, queue: FairQueue) -> None:
        queue.push_batch([task(TWO), *(task(ONE) for _ in range(200))], now=NOW)
        for _ in range(100):
            queue.pop("w", now=NOW)
        queue.push_batch([task(TWO) for _ in range(100)], now=NOW)
        served = Counter(queue.pop("w", now=NOW).user_id for _ in range(40))  # type: ignore[union-attr]
        assert abs(served[ONE] - served[TWO]) <= 2

    def test_one_that_comes_and_goes_gains_nothing(self, queue: FairQueue) -> None:
        there, turns = queue.shards[1], Turns(2)  # as the lanes of a worker see it
        queue.push_batch([task(ONE) for _ in range(900)], now=NOW)
        queue.push(task(TWO), now=NOW)
        served: Counter[str] = Counter()
        for _ in range(300):
            index = turns.next([0, 1])
            settled = queue.shards[index].settle([], 2, worker="w", now=NOW)
            turns.served(index, settled.virtual_time, len(settled.leases), 2)
            for lease in settled.leases:
                served[lease.user_id] += 1
                queue.finish(lease, now=NOW)
                if lease.user_id == TWO:
                    there.push(task(TWO), now=NOW)
        assert served[TWO] <= 1.05 * sum(served.values()) / 2

    def test_lists_of_users(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        assert [each.user_id for each in queue.pop_batch(5, "w", [TWO], now=NOW)] == [TWO]
        assert {each.user_id for each in queue.pop_batch(5, "w", [TWO], [ONE], now=NOW)} == {ONE}
