"""Bursts of users on a queue that has run tasks of another length (docs/explanation/fairness.md)."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.sharded import users_of
from tests.engine.two_groups import TwoGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

P = "fq:{default:0}:"
SHORT, LONG = 0.05, 1.0


def after_long_tasks(redis: Redis, fair_by: str = "tasks", shards: int = 1) -> FairQueue:
    """A queue that has run tasks of a second, on each of its shards."""
    queue = FairQueue(redis, config=QueueConfig.model_validate({"fair_by": fair_by, "shards": shards}))
    for shard in range(shards):
        queue.push_batch([task(users_of(shard, 1, shards=shards)[0]) for _ in range(3)], now=NOW)
    while serve(queue, LONG):
        pass
    return queue


def serve(queue: FairQueue, took: float = SHORT, now: float = NOW) -> str | None:
    lease = queue.pop("w", now=now)
    if lease is None:
        return None
    queue.finish(lease, took=took, now=now)
    return lease.user_id


def arrive(queue: FairQueue, users: Iterable[str], tasks: int, *, in_bulk: bool = True) -> None:
    if in_bulk:
        queue.push_batch([task(user) for user in users for _ in range(tasks)], now=NOW)
        return
    for user in users:
        queue.push_batch([task(user) for _ in range(tasks)], now=NOW)


def serve_first_turns(queue: FairQueue, users: set[str]) -> Counter[str]:
    turns = Counter[str]()
    while not users <= turns.keys():
        turns[str(serve(queue))] += 1
    return turns


@pytest.mark.parametrize("in_bulk", [False, True])
@pytest.mark.parametrize(("shards", "size"), [(1, 100), (3, 60)])
def test_the_first_turns_of_a_burst_come_before_any_second(redis: Redis, shards: int, size: int, in_bulk: bool) -> None:
    queue = after_long_tasks(redis, shards=shards)
    users = {f"b{number}" for number in range(size)}
    arrive(queue, sorted(users), 3, in_bulk=in_bulk)
    assert set(serve_first_turns(queue, users).values()) == {1}


def test_users_with_tasks_are_never_more_than_a_task_apart(redis: Redis) -> None:
    """Those who come while a burst is served too, each from its first turn on."""
    queue = after_long_tasks(redis)
    chance, users, order = random.Random(1), [f"b{number}" for number in range(40)], list[str]()
    arrive(queue, users, 12)
    for start in range(200):
        if start % 10 == 5 and start < 100:
            users.append(f"late{start}")
            arrive(queue, users[-1:], 12)
        order += [str(serve(queue)) for _ in range(chance.randint(1, 2))]
    first = {user: order.index(user) for user in users}
    assert len(first) == 50
    for one in users:
        for other in users:
            ahead = 0
            for user in order[max(first[one], first[other]) :]:
                ahead += (user == one) - (user == other)
                assert abs(ahead) <= 1, (one, other)


def test_the_few_of_a_burst_who_keep_tasks_get_few_turns_before_its_end(redis: Redis) -> None:
    queue = after_long_tasks(redis)
    few, size = {f"few{number}" for number in range(5)}, 120
    for number in range(size - len(few)):
        if number % 20 == 0 and number < 100:
            arrive(queue, [f"few{number // 20}"], 30)
        arrive(queue, [f"b{number}"], 1)
    turns = serve_first_turns(queue, few | {f"b{number}" for number in range(size - len(few))})
    assert max(turns[user] for user in few) <= 2 + math.log(size / len(few))


def test_short_tasks_after_long_ones_leave_nobody_out(redis: Redis) -> None:
    """By time: a newcomer's charge is corrected when its first task has ended."""
    queue, now = FairQueue(redis, config=QueueConfig(fair_by="time")), NOW
    queue.push_batch([task("before") for _ in range(20)], now=now)
    while serve(queue, LONG):
        pass
    arrive(queue, [f"b{number}" for number in range(100)], 20)
    starts, running = Counter[str](), list[Any]()
    while now < NOW + 5:
        for lease in queue.pop_batch(4 - len(running), "w", now=now):
            starts[lease.user_id] += 1
            heapq.heappush(running, (now + SHORT, lease.token, lease))
        now = running[0][0]
        outcomes = []
        while running and running[0][0] <= now:
            outcomes.append(Outcome.finish(heapq.heappop(running)[2], took=SHORT))
        queue.settle(outcomes, now=now)
    counts = [starts[f"b{number}"] for number in range(100)]
    assert min(counts) >= 3
    assert max(counts) <= 5


@pytest.mark.parametrize("fair_by", ["time", "tasks"])
def test_a_single_newcomer_is_next_once_a_burst_has_had_its_turns(redis: Redis, fair_by: str) -> None:
    queue = after_long_tasks(redis, fair_by)
    users = {f"b{number}" for number in range(50)}
    arrive(queue, sorted(users), 10)
    for _ in range(60):
        serve(queue)
    for number in range(3):
        arrive(queue, [f"new{number}"], 1)
        assert serve(queue) == f"new{number}"
        for _ in range(50):
            serve(queue)


arrivals = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 4), st.integers(0, 6)), min_size=5, max_size=40
)


@given(arrivals=arrivals)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_engine_serves_as_the_model_start_by_start(redis: Redis, arrivals: list[tuple[str, int, int]]) -> None:
    redis.flushall()
    weights = {"a": 2.0, "b": 0.5, "c": 4.0}
    queue, model = FairQueue(redis, config=QueueConfig(fair_by="tasks")), TwoGroups(weights)
    for user, weight in weights.items():
        queue.user(user).set_weight(weight, now=NOW)
    queue.push(task("first"), now=NOW)
    serve(queue, LONG)
    steps = [*arrivals, ("last", 1, 200)]
    for user, number, turns in steps:
        queue.push_batch([task(user) for _ in range(number)], now=NOW)
        model.push(user, number)
        for _ in range(turns):
            expected = model.serve()
            assert serve(queue) == expected
            if expected is None:
                break
    assert queue.check_invariants() == []


class TestItsPlace:
    """A newcomer keeps it while it has had no turn."""

    @pytest.fixture
    def queue(self, redis: Redis) -> FairQueue:
        queue = after_long_tasks(redis)
        arrive(queue, ["waits", "too"], 20)
        for _ in range(5):
            serve(queue)
        arrive(queue, ["x", "y", "z"], 2)
        return queue

    def test_is_kept_through_every_change(self, queue: FairQueue) -> None:
        x = queue.user("x")
        for change in (
            lambda: x.set_weight(3, now=NOW),
            lambda: x.pause(now=NOW),
            lambda: x.resume(now=NOW),
            lambda: x.set_max_running(1, now=NOW),
            lambda: x.set_organization("g", now=NOW),
            lambda: x.set_organization(None, now=NOW),
            lambda: x.purge(now=NOW),
            lambda: arrive(queue, ["x"], 2),
        ):
            change()
            assert queue.check_invariants() == []
        assert [serve(queue) for _ in range(3)] == ["x", "y", "z"]

    def test_a_list_that_serves_it_adds_nothing_to_the_lead(self, queue: FairQueue, redis: Redis) -> None:
        before = redis.hget(P + "stats", "lead")
        lease = queue.pop("w", ["x"], now=NOW)
        assert lease is not None
        assert redis.hget(P + "stats", "lead") == before
        assert [serve(queue) for _ in range(2)] == ["y", "z"]

    def test_a_lease_given_back_takes_its_part_of_the_lead_back(self, queue: FairQueue, redis: Redis) -> None:
        before = float(redis.hget(P + "stats", "lead") or 0)
        lease = queue.pop("w", now=NOW)
        assert lease is not None
        assert float(redis.hget(P + "stats", "lead") or 0) == pytest.approx(before + 1e6 / 5)
        queue.release(lease, now=NOW)
        assert float(redis.hget(P + "stats", "lead") or 0) == pytest.approx(before)


def test_a_newcomer_among_the_others_is_found_and_put_right(redis: Redis) -> None:
    queue = after_long_tasks(redis)
    queue.user("member").set_organization("g", now=NOW)
    arrive(queue, ["a", "member"], 3)
    serve(queue)
    arrive(queue, ["new"], 1)
    redis.zadd(P + "ring", {"new": 5})
    redis.hset(P + "stats", mapping={"others": 7, "revision": ""})
    redis.hset(P + "group:g", "others", 3)
    assert {each.invariant for each in queue.check_invariants()} == {"newcomers", "counters"}
    queue.repair()
    assert queue.check_invariants() == []
