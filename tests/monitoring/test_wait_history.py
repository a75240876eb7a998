"""The users with the longest waits in each half hour: the samples of maintenance, and the history that is read."""

from __future__ import annotations

import json
import time

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.wait_history import KEPT_USERS, SAMPLED_USERS, HalfHour, SampledWait
from django_fairque.monitoring.wait_history import wait_history
from tests.counting import commands
from tests.engine.conftest import task

HALF_HOUR = 1800
WAITS = "fq:{default:0}:stats:waits"


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(fair_by="tasks", retry_jitter=0))


def begin_of(half_hours_ago: int) -> float:
    """The start of a half hour; of the one that is going on with 0."""
    return time.time() // HALF_HOUR * HALF_HOUR - HALF_HOUR * half_hours_ago


@pytest.mark.parametrize("shards", [1, 3])
def test_the_longest_waits_of_each_half_hour_are_kept(redis: Redis, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=shards))
    now = begin_of(4)
    queue.push_batch([task("ann"), task("ann"), task("bob")], now=now)
    queue.sweep(now=now + 120)
    queue.push(task("carol"), now=now + 200)
    queue.sweep(now=now + 300)
    queue.user("bob").purge(now=now + 300)
    queue.sweep(now=now + HALF_HOUR + 60)
    history = wait_history(queue)
    assert (len(history.begins), history.begins[-5]) == (48, now)
    waits = {user.user_id: user.waits[-6:] for user in history.users}
    assert waits == {
        "ann": (None, 300, 1860, None, None, None),
        "bob": (None, 300, 0, None, None, None),
        "carol": (None, 100, 1660, None, None, None),
    }
    assert [user.user_id for user in history.users] == ["ann", "carol", "bob"]
    assert history.users[0].ready[-5:-3] == (2, 2)
    assert history.users[0].longest == 1860


def test_the_median_wait_counts_all_waiting_users(queue: FairQueue) -> None:
    now = begin_of(2)
    for number in range(41):
        queue.push(task(f"u{number:02}"), now=now + number)
    queue.sweep(now=now + 100)
    history = wait_history(queue)
    assert history.medians[-4:] == (None, 80, None, None)
    assert [user.user_id for user in history.users] == [f"u{number:02}" for number in range(KEPT_USERS)]


def test_tasks_that_are_held_back_count_as_no_wait(queue: FairQueue) -> None:
    now = begin_of(1)
    queue.push_batch([task("paused"), task("member")], now=now)
    queue.user("member").set_organization("acme", now=now)
    queue.organization("acme").pause(now=now)
    queue.user("paused").pause(now=now)
    queue.push(task("free"), now=now + 100)
    queue.sweep(now=now + 100)
    history = wait_history(queue)
    assert (history.users, history.medians[-2]) == ([], 0)


def test_records_of_the_wait_history_are_bounded(queue: FairQueue, redis: Redis) -> None:
    names = ["\x01" * 200, *(f"{number:03}" + "é" * 120 for number in range(100))]
    begin = begin_of(100)
    queue.push_batch([task(name) for name in names], now=begin)
    for number in range(100):
        queue.sweep(now=begin + HALF_HOUR * number + 60)
    assert redis.hlen(WAITS) == 50
    assert all(len(value) < KEPT_USERS * 330 for value in redis.hvals(WAITS))
    assert len(wait_history(queue).users) >= KEPT_USERS
    assert commands(redis, lambda: wait_history(queue)) <= 2


def test_a_sample_costs_the_same_with_any_number_of_users(queue: FairQueue, redis: Redis) -> None:
    begin = begin_of(1)
    costs = []
    for number, users in enumerate([200, 2000]):
        queue.push_batch([task(f"{users}:{index}") for index in range(users)], now=begin + 60 * number)
        costs.append(commands(redis, lambda number=number: queue.sweep(now=begin + 60 * number + 30)))  # type: ignore[misc]
    assert abs(costs[0] - costs[1]) <= 10
    assert costs[1] < 10 * SAMPLED_USERS


@pytest.mark.parametrize(
    "value", ["", "x", "[]", "[1, 2, 3]", '[1, 2, {"a": 1}]', '[1, 2, {"\\ud800": [1, 2]}]', "1e999"]
)
def test_a_damaged_wait_record_is_ignored(queue: FairQueue, redis: Redis, value: str) -> None:
    now = time.time()
    redis.hset(WAITS, str(int(now) // HALF_HOUR % 50), value)
    assert wait_history(queue).users == []
    queue.push(task("ann"), now=now - 50)
    queue.sweep(now=now)
    assert [user.user_id for user in wait_history(queue).users] == ["ann"]


def test_a_key_of_another_type_hides_only_history(queue: FairQueue, redis: Redis) -> None:
    redis.set(WAITS, "damaged")
    queue.push(task("ann"), now=time.time() - 100)
    queue.sweep()
    assert wait_history(queue).users == []
    assert queue.get_stats().minutes[-1].ready == 1 or queue.get_stats().minutes[-2].ready == 1
    redis.delete(WAITS)


def test_a_record_of_waits_is_decoded_as_it_was_encoded() -> None:
    found = HalfHour.from_waits(HALF_HOUR * 7 + 5, [SampledWait('a\n"b', 12.9, 3), SampledWait("brief", 0.4, 8)])
    assert found == HalfHour(7, 7, {'a\n"b': (13, 3)})
    assert HalfHour.parse(found.pack().encode()) == found
    assert json.loads(found.pack())[0] == 7
    later = HalfHour(7, 2, {'a\n"b': (5, 9), "c": (4, 1)}).with_earlier(found)
    assert later == HalfHour(7, 7, {'a\n"b': (13, 9), "c": (4, 1)})
    assert HalfHour(8, 0, {}).with_earlier(found) == HalfHour(8, 0, {})
