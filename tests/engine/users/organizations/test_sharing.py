"""Organizations: however many users an organization has, together they get what one of its weight would."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task
from tests.engine.leasing.test_fairness import served

from .making import join, members

P = "fq:{default:0}:"


class TestNextToOtherUsers:
    @pytest.mark.parametrize("size", [1, 7, 50])
    def test_an_organization_of_a_hundred_users_gets_the_share_of_one_user(self, crowd: FairQueue, size: int) -> None:
        lead = 0
        for _ in range(600 // size):
            for user in served(crowd.pop_batch(size, "w", now=NOW)):
                lead += 1 if user == "alone" else -1
                assert abs(lead) <= 1

    def test_members_share_the_turns_of_their_organization_equally(self, crowd: FairQueue) -> None:
        got: Counter[str] = Counter()
        for _ in range(40):
            got.update(served(crowd.pop_batch(50, "w", now=NOW)))
        assert got.pop("alone") == 1000
        assert len(got) == 100
        assert max(got.values()) - min(got.values()) <= 1

    @pytest.mark.parametrize("seed", range(3))
    def test_no_user_or_member_is_more_than_a_task_ahead_of_its_peers(self, queue: FairQueue, seed: int) -> None:
        """Users and members that join at random, batches of random size."""
        chance, joined, order = random.Random(seed), dict[str, int](), list[str]()
        organization: dict[str, str] = {}
        for step in range(60):
            if step < 5 or chance.random() < 0.3:
                name = f"u{chance.random()}"
                joined[name], organization[name] = len(order), chance.choice(["", "g", "h"])
                join(queue, organization[name] or None, name)
                push_many(queue, name, 150)
            order += served(queue.pop_batch(chance.randint(1, 7), "w", now=NOW))
        self.within_a_task(order, joined, {name: organization[name] for name in joined}, inside=True)
        since: dict[str, int] = {}
        for name, at in joined.items():
            since.setdefault(organization[name] or name, at)
        self.within_a_task([organization[user] or user for user in order], since, {}, inside=False)

    @staticmethod
    def within_a_task(order: list[str], joined: dict[str, int], organization: dict[str, str], *, inside: bool) -> None:
        for one in joined:
            for other in joined:
                if inside and not (organization[one] and organization[one] == organization[other]):
                    continue
                lead = 0
                for user in order[max(joined[one], joined[other]) :]:
                    lead += (user == one) - (user == other)
                    assert abs(lead) <= 1, (one, other)

    def test_weights_of_organizations_and_of_members_are_shares(self, queue: FairQueue) -> None:
        queue.organization("g").set_weight(3, now=NOW)
        join(queue, "g", "light", "heavy")
        queue.user("heavy").set_weight(2, now=NOW)
        for name in ("light", "heavy", "alone"):
            push_many(queue, name, 1000)
        got: Counter[str] = Counter()
        for _ in range(16):
            got.update(served(queue.pop_batch(50, "w", now=NOW)))
        assert [got[name] for name in ("alone", "light", "heavy")] == pytest.approx([200, 200, 400], rel=0.02)

    def test_a_weight_acts_at_once_on_a_backlog(self, crowd: FairQueue) -> None:
        crowd.pop_batch(100, "w", now=NOW)
        crowd.organization("crowd").set_weight(3, now=NOW)
        got = Counter(served(crowd.pop_batch(200, "w", now=NOW)))
        assert got["alone"] == pytest.approx(50, abs=2)

    def test_organizations_and_members_get_equal_worker_time_if_fair_by_time(self, make_queue: MakeQueue) -> None:
        queue = make_queue(fair_by="time")
        cost = {"fast": 0.01, "slow": 0.1, "alone": 0.05}
        join(queue, "g", "fast", "slow")
        for name, count in (("fast", 3000), ("slow", 300), ("alone", 600)):
            push_many(queue, name, count)
        busy, running, now = Counter[str](), list[tuple[float, int, Any]](), NOW
        for lease in queue.pop_batch(4, "w", now=NOW):
            heapq.heappush(running, (NOW + cost[lease.user_id], lease.token, lease))
        while now < NOW + 12:
            now, _, lease = heapq.heappop(running)
            busy[lease.user_id] += cost[lease.user_id]  # type: ignore[assignment]
            settled = queue.settle([Outcome.finish(lease, took=cost[lease.user_id])], 1, worker="w", now=now)
            (following,) = settled.leases
            heapq.heappush(running, (now + cost[following.user_id], following.token, following))
        assert busy["fast"] + busy["slow"] == pytest.approx(busy["alone"], rel=0.05)
        assert busy["fast"] == pytest.approx(busy["slow"], rel=0.08)

    @pytest.mark.parametrize("fair_by", ["tasks", "time"])
    def test_a_newcomer_is_next_only_within_its_organization(self, make_queue: MakeQueue, fair_by: str) -> None:
        queue = make_queue(fair_by=fair_by)
        join(queue, "g", "a", "b", "new")
        for name in ("a", "b", "alone", "other"):
            push_many(queue, name, 30)
        while served(queue.pop_batch(1, "w", now=NOW)) not in (["a"], ["b"]):
            pass
        push_many(queue, "new", 30)
        turns = served(queue.pop_batch(4, "w", now=NOW))
        assert turns.index("new") == 2
        assert {"alone", "other"} == set(turns[:2])

    def test_a_returning_organization_is_served_next(self, queue: FairQueue) -> None:
        join(queue, "g", "a")
        for i in range(20):
            push_many(queue, f"b{i}", 5)
        queue.pop_batch(30, "w", now=NOW)
        push_many(queue, "a", 2)
        assert served(queue.pop_batch(2, "w", now=NOW))[0] == "a"
        assert queue.get_queue_sizes("a").ready == 1

    def test_an_organization_whose_members_come_one_by_one_gains_no_advantage(self, queue: FairQueue) -> None:
        """Each time another member, each with one task, when the last has ended."""
        for name in ("x", "y", "z"):
            push_many(queue, name, 400)
        join(queue, "g", *members("g", 40))
        queue.push(task("g.0"), now=NOW)
        got = Counter[str]()
        for turn in range(400):
            lease = pop(queue)
            got[lease.user_id.partition(".")[0]] += 1
            queue.finish(lease, took=0.01, now=NOW)
            if lease.user_id.startswith("g."):
                queue.push(task(f"g.{turn % 40}"), now=NOW)
        assert got["g"] <= 1.05 * 100

    def test_organizations_with_equal_shares_are_served_by_arrival(self, queue: FairQueue) -> None:
        join(queue, "g", "z", "a", "q")
        names = ["m", "z", "B", "a", "q"]
        for name in names:
            push_many(queue, name, 3)
        assert served(queue.pop_batch(9, "w", now=NOW)) == ["m", "z", "B", "m", "a", "B", "m", "q", "B"]
        assert served(queue.pop_batch(9, "w", now=NOW)) == ["z", "a", "q", "z", "a", "q"]


class TestMembers:
    def test_a_blocked_member_leaves_only_the_ring_of_its_organization(self, queue: FairQueue, redis: Redis) -> None:
        join(queue, "g", "paused", "capped", "rated", "free")
        queue.user("paused").pause(now=NOW)
        queue.user("capped").set_max_running(1, now=NOW)
        queue.user("rated").set_rate("1/s", now=NOW)
        for name in ("paused", "capped", "rated", "free"):
            push_many(queue, name, 3)
        assert Counter(served(queue.pop_batch(9, "w", now=NOW))) == {"capped": 1, "rated": 1, "free": 3}
        assert redis.zcard(f"{P}ring") == redis.exists(f"{P}ring:g") == 0
        assert served(queue.pop_batch(9, "w", now=NOW + 1)) == ["rated"]
        queue.user("paused").resume(now=NOW + 1)
        assert served(queue.pop_batch(9, "w", now=NOW + 1)) == ["paused"] * 3

    def test_users_with_a_backlog_who_join_an_organization_share_its_turns_at_once(self, queue: FairQueue) -> None:
        for name in ("a", "b", "alone"):
            push_many(queue, name, 100)
        queue.pop_batch(30, "w", now=NOW)
        join(queue, "g", "a", "b")
        got = Counter(served(queue.pop_batch(80, "w", now=NOW)))
        assert got["alone"] == pytest.approx(40, abs=2)
        assert abs(got["a"] - got["b"]) <= 1

    def test_users_with_a_backlog_who_leave_an_organization_get_their_own_share_at_once(self, crowd: FairQueue) -> None:
        crowd.pop_batch(100, "w", now=NOW)
        join(crowd, None, "crowd.0")
        join(crowd, "other", "crowd.1")
        got = Counter(served(crowd.pop_batch(80, "w", now=NOW)))
        assert [got["alone"], got["crowd.0"], got["crowd.1"]] == [20, 20, 20]

    def test_moving_between_organizations_gains_no_advantage(self, queue: FairQueue) -> None:
        for name in ("a", "b", "c"):
            push_many(queue, name, 400)
        got = Counter[str]()
        for turn in range(300):
            got.update(served(queue.pop_batch(1, "w", now=NOW)))
            join(queue, ("g", "h", None)[turn % 3], "a")
        assert got["a"] <= 105

    def test_running_tasks_move_with_their_user(self, queue: FairQueue) -> None:
        join(queue, "g", "a")
        push_many(queue, "a", 4)
        first, second, third = queue.pop_batch(3, "w", now=NOW)
        assert queue.organization("g").stats().running == 3
        join(queue, "h", "a")
        queue.finish(first, now=NOW)
        queue.release(second, now=NOW)
        assert (queue.organization("g").stats().running, queue.organization("h").stats().running) == (0, 1)
        join(queue, None, "a")
        queue.finish(third, now=NOW)
        assert not queue.organization("h").stats().is_known

    def test_every_end_of_a_member_s_task_updates_its_organization(self, queue: FairQueue) -> None:
        """The fixture looks at the invariants at the end; here they are looked at after each step."""
        join(queue, "g", "a", "b")
        ids = push_many(queue, "a", 6, max_retries=0)
        push_many(queue, "b", 2)
        for step in (
            lambda: queue.cancel(ids[5], now=NOW),
            lambda: queue.fail(queue.pop_batch(1, "w", ["a"], now=NOW)[0], "x", now=NOW),
            lambda: queue.dlq.requeue_all(now=NOW),
            lambda: queue.pause(now=NOW),
            lambda: queue.resume(now=NOW),
            lambda: queue.user("b").purge(now=NOW),
            lambda: queue.pop_batch(2, "w", now=NOW),
            lambda: queue.sweep(now=NOW + 100),
            lambda: queue.user("a").purge(now=NOW + 100),
        ):
            step()
            assert queue.check_invariants() == []
        assert queue.organization("g").stats().members_ready == 0
