"""Bursts of users on a queue that has run tasks of another length (docs/explanation/fairness.md)."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task
from tests.engine.sharding.sharded import users_of
from tests.engine.two_groups import Run, TwoGroups

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


by_either = pytest.mark.parametrize("fair_by", ["time", "tasks"])


@pytest.mark.parametrize(
    ("fair_by", "shards", "size", "in_bulk"),
    [
        ("time", 1, 100, False),
        ("tasks", 1, 300, True),
        ("tasks", 3, 60, False),
        ("time", 3, 60, True),
        pytest.param("time", 1, 5000, True, marks=pytest.mark.slow),
        pytest.param("tasks", 3, 5000, False, marks=pytest.mark.slow),
    ],
)
def test_every_user_of_a_burst_gets_a_turn_first(
    redis: Redis, fair_by: str, shards: int, size: int, in_bulk: bool
) -> None:
    queue = after_long_tasks(redis, fair_by, shards)
    users = {f"b{number}" for number in range(size)}
    arrive(queue, sorted(users), 3, in_bulk=in_bulk)
    assert set(serve_first_turns(queue, users).values()) == {1}


@pytest.mark.parametrize(
    ("shards", "in_bulk", "load"),
    [(1, False, 0.3), (1, True, 0.6), (1, False, 1.5), (3, True, 0.3), (3, False, 0.6), (3, True, 1.5)],
)
def test_users_with_tasks_are_at_most_one_task_apart(redis: Redis, shards: int, in_bulk: bool, load: float) -> None:
    """From the first turn of the one that came later. If that one has waited for turns of the other one, it catches up these."""
    queue = after_long_tasks(redis, shards=shards)
    chance, users, order = random.Random(1), [f"b{number}" for number in range(20)], list[str]()
    arrive(queue, users, 30, in_bulk=in_bulk)
    came = dict.fromkeys(users, 0)
    due = 10.0
    while len(order) < 250:
        new = [f"late{number}" for number in range(len(users), len(users) + chance.randint(1, 2))]
        if due <= len(order) and len(users) < 60:
            arrive(queue, new, 30, in_bulk=in_bulk)
            users += new
            came.update(dict.fromkeys(new, len(order)))
            due += len(new) * chance.expovariate(load)
        order.append(str(serve(queue)))
    first = {user: order.index(user) for user in users}
    for one, other in itertools.permutations(users, 2):
        if first[one] > first[other]:
            continue
        waited_for = order[max(came[other], first[one] + 1) : first[other]].count(one)
        most = waited_for + (1 if shards == 1 else 2)  # with several shards: a turn on each
        ahead = 0
        for user in order[first[other] :]:
            ahead += (user == one) - (user == other)
            assert -most <= ahead <= 1, (one, other)


@by_either
@pytest.mark.parametrize("shards", [1, 3])
def test_users_of_a_burst_with_tasks_left_get_few_turns_during_it(redis: Redis, fair_by: str, shards: int) -> None:
    queue = after_long_tasks(redis, fair_by, shards)
    few, size = {f"few{number}" for number in range(5)}, 120
    for number in range(size - len(few)):
        if number % 20 == 0 and number < 100:
            arrive(queue, [f"few{number // 20}"], 30)
        arrive(queue, [f"b{number}"], 1)
    turns = serve_first_turns(queue, few | {f"b{number}" for number in range(size - len(few))})
    assert max(turns[user] for user in few) <= 2 + math.log(size / len(few))


def test_every_user_is_served_when_short_tasks_follow_long_ones(redis: Redis) -> None:
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


@by_either
@pytest.mark.parametrize("shards", [1, 3])
def test_a_single_newcomer_is_next_after_the_turns_of_a_burst(redis: Redis, fair_by: str, shards: int) -> None:
    queue = after_long_tasks(redis, fair_by, shards)
    users = {f"b{number}" for number in range(50)}
    arrive(queue, sorted(users), 10)
    for _ in range(60):
        serve(queue)
    for number in range(3):
        arrive(queue, [f"new{number}"], 1)
        assert serve(queue) == f"new{number}"
        for _ in range(50):
            serve(queue)


def test_a_newcomer_whose_tasks_run_longer_than_expected_is_no_newcomer_after_its_turn(redis: Redis) -> None:
    """The next task of such a user does not raise its tag, because the charge for the longer time covers it."""
    queue = FairQueue(redis, config=QueueConfig(fair_by="time"))
    arrive(queue, ["a"], 2)
    for now in (NOW, NOW + 60):
        assert pop(queue, lease=1000, now=now).user_id == "a"
    arrive(queue, ["b", "c"], 100)
    for _ in range(50):
        serve(queue, took=10, now=NOW + 60)
    arrive(queue, ["a"], 10)
    arrive(queue, ["d"], 1)
    assert [pop(queue, now=NOW + 60).user_id for _ in range(2)] == ["a", "d"]
    assert queue.check_invariants() == []


class Replay:
    """Some slots of the engine and of the model, which must start the same users. Times are in milliseconds."""

    def __init__(self, redis: Redis, fair_by: str, slots: int = 1) -> None:
        redis.flushall()
        weights = {"a": 2.0, "b": 0.5, "c": 4.0}
        self.queue = FairQueue(redis, config=QueueConfig.model_validate({"fair_by": fair_by}))
        for user, weight in weights.items():
            self.queue.user(user).set_weight(weight, now=NOW)
        self.model, self.slots, self.now = TwoGroups(fair_by, weights), slots, 0
        self.started: list[str] = []
        self._running: list[tuple[int, int, Lease, Run]] = []

    def push(self, arrivals: Sequence[tuple[str, int]]) -> None:
        """In one call."""
        self.queue.push_batch(
            [task(user) for user, number in arrivals for _ in range(number)], now=NOW + self.now / 1000
        )
        for user, number in arrivals:
            self.model.push(user, number)

    def serve(self, run_time: int) -> str | None:
        """Wait for a free slot, and start a task that takes this time."""
        while self._running and (len(self._running) == self.slots or self._running[0][0] <= self.now):
            self._end_one()
        run = self.model.start(self.now * 1000)
        lease = self.queue.pop("w", lease=1e6, now=NOW + self.now / 1000)
        assert (lease and lease.user_id) == (run and run.user), f"start {len(self.started) + 1}"
        if lease is None or run is None:
            return None
        self.started.append(run.user)
        heapq.heappush(self._running, (self.now + run_time, len(self.started), lease, run))
        return run.user

    def _end_one(self) -> None:
        ends, _, lease, run = heapq.heappop(self._running)
        self.now = max(self.now, ends)
        took = self.now - run.started / 1000
        self.queue.finish(lease, took=took / 1000, now=NOW + self.now / 1000)
        self.model.end(run, self.now * 1000)


arrivals = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 4)), min_size=1, max_size=5), st.integers(0, 6)
    ),
    min_size=5,
    max_size=30,
)
"""In one call, and how many tasks start before the next ones."""


@by_either
@given(
    slots=st.sampled_from([1, 2, 4, 8]),
    run_times=st.lists(st.sampled_from([1, 20, 50, 300, 1000, 5000]), min_size=1, max_size=7),
    before=st.integers(0, 3),
    arrivals=arrivals,
)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_engine_follows_the_model_start_by_start(
    redis: Redis, fair_by: str, slots: int, run_times: list[int], before: int, arrivals: list[tuple[list[Any], int]]
) -> None:
    replay, times = Replay(redis, fair_by, slots), itertools.cycle(run_times)
    for _ in range(before):
        replay.push([("before", 1)])
        replay.serve(1000)
    for pushed, turns in [*arrivals, ([("last", 1)], 500)]:
        replay.push(pushed)
        for _ in range(turns):
            if replay.serve(next(times)) is None:
                break
    assert replay.queue.check_invariants() == []


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_a_newcomer_waits_for_older_newcomers_and_a_turn_of_each_user(redis: Redis, tasks: int) -> None:
    """400 users arrive one by one, two of them for each task that starts. The model begins a newcomer at the virtual time of its
    arrival; with that of its first turn, the engine would start other users."""
    replay, users = Replay(redis, "tasks"), [f"n{number}" for number in range(400)]
    replay.push([("before", 1)])
    replay.serve(1)
    came: dict[str, tuple[int, int]] = {}
    for number, user in enumerate(users):
        replay.push([(user, tasks)])
        ended = sum(turns == tasks for turns in Counter(replay.started[1:]).values())
        came[user] = len(replay.started), number + 1 - ended
        if number % 2:
            replay.serve(1)
    while not came.keys() <= set(replay.started):
        replay.serve(1)
    first = {user: replay.started.index(user) for user in users}
    for user, (at, users_with_tasks) in came.items():
        waited_for = [start for start in range(at, first[user]) if first[replay.started[start]] < start]
        assert len(waited_for) <= users_with_tasks


class TestLocation:
    """A newcomer keeps it while it has had no turn."""

    @pytest.fixture
    def queue(self, redis: Redis) -> FairQueue:
        queue = after_long_tasks(redis)
        arrive(queue, ["waits", "too"], 20)
        for _ in range(5):
            serve(queue)
        arrive(queue, ["x", "y", "z"], 2)
        return queue

    def test_a_newcomer_keeps_its_position_when_its_settings_change(self, queue: FairQueue) -> None:
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

    def test_a_newcomer_served_by_a_list_does_not_add_to_the_lead(self, queue: FairQueue, redis: Redis) -> None:
        before = redis.hget(P + "stats", "lead")
        pop(queue, users=["x"])
        assert redis.hget(P + "stats", "lead") == before
        assert [serve(queue) for _ in range(2)] == ["y", "z"]

    def test_a_released_lease_lowers_the_recorded_lead(self, queue: FairQueue, redis: Redis) -> None:
        before = float(redis.hget(P + "stats", "lead") or 0)
        lease = pop(queue)
        assert float(redis.hget(P + "stats", "lead") or 0) == pytest.approx(before + 1e6 / 5)
        queue.release(lease, now=NOW)
        assert float(redis.hget(P + "stats", "lead") or 0) == pytest.approx(before)


def test_a_misplaced_newcomer_is_found_and_repaired(redis: Redis) -> None:
    queue = after_long_tasks(redis)
    queue.user("member").set_organization("g", now=NOW)
    arrive(queue, ["a", "member"], 3)
    serve(queue)
    arrive(queue, ["new"], 1)
    redis.zadd(P + "ring", {"new": 5})
    redis.hset(P + "stats", mapping={"others": 7, "revision": ""})
    redis.hset(P + "group:g", "others", 3)
    assert {violation.invariant for violation in queue.check_invariants()} == {"newcomers", "counters"}
    queue.repair()
    assert queue.check_invariants() == []
