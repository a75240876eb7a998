"""A stream of users who were never seen before does not starve those who wait (docs/explanation/fairness.md)."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, task
from tests.engine.sharding.sharded import users_of
from tests.user_records import change_record

P = "fq:{default:0}:"
by_either = pytest.mark.parametrize("fair_by", ["time", "tasks"])


class Stream:
    """Slots that are always busy, users who always have work, and newcomers with one task each. It records all starts.

    Newcomers come at ``load`` times the capacity. With ``lengths`` of more than one value tasks take one of these, at random.
    """

    def __init__(
        self,
        queue: FairQueue,
        waiting: Mapping[str, float],
        load: float,
        slots: int = 1,
        lengths: tuple[float, ...] = (1.0,),
        seed: int | None = None,
        names: Iterator[str] | None = None,
    ) -> None:
        self.queue, self.weights, self.load, self.slots, self.lengths = queue, waiting, load, slots, lengths
        self.random = random.Random(seed) if seed is not None else None
        self.names = names or (f"new{number}" for number in itertools.count(1))
        self.now, self.due, self.order = NOW, 0.0, itertools.count()
        self.starts: list[str] = []
        self.came: dict[str, int] = {}
        """For each newcomer the number of tasks that had started when it came."""
        self.active: list[float] = []
        """The sum of the weights of the users with work at each start, or when newcomers came just before it."""
        self.took: list[float] = []
        self.running: list[tuple[float, int, Lease]] = []
        for user, weight in waiting.items():
            if weight != 1:
                queue.user(user).set_weight(weight, now=NOW)
            queue.push_batch([task(user) for _ in range(400)], now=NOW)

    def come(self) -> None:
        self.due += self.load * (self.random.choice([0, 0, 1, 3]) if self.random else 1)
        number, self.due = int(self.due), self.due - int(self.due)
        new = list(itertools.islice(self.names, number))
        if new:
            self.queue.push_batch([task(user) for user in new], now=self.now)
        self.came.update(dict.fromkeys(new, len(self.starts)))

    def run(self, starts: int) -> None:
        while len(self.starts) < starts:
            is_full = len(self.running) == self.slots
            if is_full:
                self.now = max(self.now, self.running[0][0])
            self.come()
            active = self.active_weight()  # with the user of the task whose end the queue has not seen yet
            outcomes = []
            if is_full:
                ends, _, lease = heapq.heappop(self.running)
                outcomes = [Outcome.finish(lease, took=ends - lease.started_at)]
            for lease in self.queue.settle(outcomes, 1, worker="w", lease=1e6, now=self.now).leases:
                took = self.random.choice(self.lengths) if self.random else self.lengths[0]
                self.starts.append(lease.user_id)
                self.took.append(took)
                heapq.heappush(self.running, (self.now + took, next(self.order), lease))
                self.active.append(max(active, self.active_weight()))

    def active_weight(self) -> float:
        started = set(self.starts)
        new = [user for user in self.came if user not in started]
        new += [lease.user_id for _, _, lease in self.running if lease.user_id in self.came]
        return sum(self.weights.values()) + len(new)

    def gaps(self, user: str) -> Iterator[tuple[int, int]]:
        """From each start of this user to the next, or to the last start of all: places in ``starts``."""
        turns = [at for at, name in enumerate(self.starts) if name == user]
        yield from itertools.pairwise([*turns, len(self.starts)])

    def later(self, first: int, last: int) -> list[int]:
        """The starts in this gap of newcomers who came after its beginning."""
        return [at for at in range(first + 1, last) if self.came.get(self.starts[at], -1) > first]

    def check(self, *, by_time: bool = False) -> None:
        """Assert the bound of the documentation, of each user who waits. By time, wrong guesses may add to it until tasks end."""
        for user, weight in self.weights.items():
            for first, last in self.gaps(user):
                later, active = self.later(first, last), max(self.active[first:last])
                bound = (1 + 1 / weight) * active + self.slots
                if by_time:
                    bound = (1.5 * bound + 3 * self.slots) * max(self.lengths)
                    assert sum(self.took[at] for at in later) <= bound, (user, first, last)
                else:
                    assert len(later) <= bound, (user, first, last)


seeds = given(seed=st.integers(0, 2**32))
runs = settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])


@by_either
@seeds
@runs
def test_a_newcomer_waits_for_at_most_two_starts_for_each_user(redis: Redis, fair_by: str, seed: int) -> None:
    """Users of any weights, up to 16 slots, bursts of newcomers, tasks that are as long as expected or not."""
    redis.flushall()
    chance = random.Random(seed)
    queue = FairQueue(redis, config=QueueConfig.model_validate({"fair_by": fair_by}))
    waiting = {f"waits{number}": chance.choice([0.5, 1, 1, 4]) for number in range(chance.randint(1, 4))}
    lengths = chance.choice([(1.0,), (0.5, 1.0, 1.5)])
    slots = chance.choice([1, 2, 4, 16])
    stream = Stream(queue, waiting, chance.choice([0.7, 0.9, 1.1, 2]), slots, lengths, seed)
    stream.run(150)
    stream.check(by_time=fair_by == "time")
    assert queue.check_invariants() == []


@by_either
@pytest.mark.parametrize("load", [0.6, 0.9, 1.1])
def test_a_stream_of_newcomers_delays_users_within_the_bound(make_queue: MakeQueue, fair_by: str, load: float) -> None:
    stream = Stream(make_queue(fair_by=fair_by), {"waiting": 1}, load)
    stream.run(150)
    stream.check(by_time=fair_by == "time")


@by_either
def test_new_members_of_an_organization_do_not_starve_its_other_members(make_queue: MakeQueue, fair_by: str) -> None:
    queue = make_queue(fair_by=fair_by)
    queue.user("waiting").set_organization("organization", now=NOW)
    names = [f"new{number}" for number in range(160)]
    for name in names:
        queue.user(name).set_organization("organization", now=NOW)
    stream = Stream(queue, {"waiting": 1}, 1.1, names=iter(names))
    stream.run(120)
    stream.check()
    assert stream.starts.count("waiting") >= 6


def test_new_users_do_not_starve_an_organization(queue: FairQueue) -> None:
    queue.user("waiting").set_organization("organization", now=NOW)
    stream = Stream(queue, {"waiting": 1}, 1.1)
    stream.run(120)
    stream.check()
    assert stream.starts.count("waiting") >= 6


@by_either
def test_a_newcomer_is_next_at_ordinary_load(make_queue: MakeQueue, fair_by: str) -> None:
    stream = Stream(make_queue(fair_by=fair_by), {f"waits{number}": 1 for number in range(10)}, 0.4)
    stream.run(200)
    assert len(stream.came) == 80
    assert all(stream.starts[at] == user for user, at in stream.came.items() if at > 0)


@pytest.mark.parametrize(
    ("load", "users", "slots", "weight"),
    [(0.45, 1, 4, 4), (0.45, 5, 1, 1), (0.75, 1, 1, 4), (0.75, 5, 4, 1), (0.98, 1, 4, 1), (0.98, 5, 1, 4)],
)
def test_a_newcomer_waits_for_at_most_weight_turns_of_each_waiting_user(
    queue: FairQueue, load: float, users: int, slots: int, weight: int
) -> None:
    """One turn with weight 1; and none while newcomers take less than half of the capacity."""
    stream = Stream(queue, {f"waits{number}": weight for number in range(users)}, load, slots)
    stream.run(150)
    turns = [
        stream.starts[came : stream.starts.index(user)].count(waiting)
        for user, came in stream.came.items()
        if came and user in stream.starts
        for waiting in stream.weights
    ]
    assert len(turns) >= 0.7 * load * 150 * users
    assert max(turns) <= (weight if load > 0.5 else 0)


def test_newcomers_who_leave_unserved_delay_no_other_user(queue: FairQueue) -> None:
    for user in ("a", "b"):
        queue.push_batch([task(user) for _ in range(20)], now=NOW)
    assert len(queue.pop_batch(10, "w", now=NOW)) == 10
    for number in range(30):
        queue.cancel(queue.push(task(f"leaves{number}"), now=NOW).task_id, now=NOW)
    queue.push(task("new"), now=NOW)
    assert [lease.user_id for lease in queue.pop_batch(1, "w", now=NOW)] == ["new"]


def test_a_list_of_users_does_not_count_newcomers(queue: FairQueue) -> None:
    """Service through a list costs no other user a turn, also if it serves newcomers."""
    for user in ("a", "b"):
        queue.push_batch([task(user) for _ in range(20)], now=NOW)
    assert len(queue.pop_batch(10, "w", now=NOW)) == 10
    for number in range(30):
        queue.push(task(f"listed{number}"), now=NOW)
        assert len(queue.pop_batch(1, "w", [f"listed{number}"], now=NOW)) == 1
    queue.push(task("new"), now=NOW)
    assert [lease.user_id for lease in queue.pop_batch(1, "w", now=NOW)] == ["new"]


def test_the_sum_of_user_weights_is_repaired(queue: FairQueue, redis: Redis) -> None:
    queue.user("member").set_organization("organization", now=NOW)
    for user in ("a", "b", "member"):
        queue.push_batch([task(user) for _ in range(3)], now=NOW)
    queue.user("a").set_weight(2.5, now=NOW)
    assert redis.hget(P + "stats", "active") == b"4500000"
    assert redis.hget(P + "group:organization", "active") == b"1000000"
    redis.hincrby(P + "stats", "active", 7)
    redis.hdel(P + "stats", "revision")
    redis.hset(P + "group:organization", "active", 3)
    change_record(redis, P + "user:b", counted=5)
    assert {violation.invariant for violation in queue.check_invariants()} == {"weights"}
    queue.repair()
    assert queue.check_invariants() == []
    assert redis.hget(P + "stats", "active") == b"4500000"
    assert redis.hget(P + "group:organization", "active") == b"1000000"
    for lease in queue.pop_batch(9, "w", now=NOW):
        queue.finish(lease, now=NOW)
    assert redis.hget(P + "stats", "active") == b"0"


@pytest.mark.parametrize(("fair_by", "home"), [("time", 0), ("tasks", 1), ("tasks", None)])
def test_newcomers_do_not_starve_users_of_another_shard(make_queue: MakeQueue, fair_by: str, home: int | None) -> None:
    queue = make_queue(fair_by=fair_by, shards=3)
    (waiting,) = users_of(1, 1, shards=3)
    anywhere = [name for shard in range(3) for name in users_of(shard, 60, shards=3)]
    random.Random(1).shuffle(anywhere)
    names = [name for name in (anywhere if home is None else users_of(home, 161, shards=3)) if name != waiting]
    stream = Stream(queue, {waiting: 1}, 1.1, names=iter(names))
    stream.run(140)
    stream.check(by_time=fair_by == "time")
    assert stream.starts.count(waiting) >= 6
