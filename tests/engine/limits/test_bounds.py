"""Many tasks at a limit cost other users nothing, and a limit that changes acts at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, push_many, task

from .test_limits import fetch, finish, push, started


def _add(found: list[Lease], queue: FairQueue) -> None:
    found += fetch(queue, 1)


def count_commands(redis: Redis, call: Callable[[], object]) -> int:
    """Return how many commands the server carries out in a call of a script, with those that the script makes."""
    redis.config_resetstat()
    call()
    stats = redis.info("commandstats")
    return sum(
        value["calls"] for name, value in stats.items() if name not in ("cmdstat_info", "cmdstat_config|resetstat")
    )


@pytest.mark.parametrize(
    ("waiting", "is_of_user"),
    [(5000, False), (5000, True), pytest.param(1_000_000, False, marks=pytest.mark.slow)],
)
def test_a_push_to_a_full_limit_costs_the_same_however_many_tasks_wait(
    queue: FairQueue, redis: Redis, waiting: int, is_of_user: bool
) -> None:
    limit = TaskLimit("k", 1, is_of_user=is_of_user)
    push(queue, "a", limit, number=10)
    fetch(queue)
    few = count_commands(redis, lambda: push(queue, "a", limit))
    for _ in range(0, waiting, 5000):
        push(queue, "a", limit, number=5000)
    assert count_commands(redis, lambda: push(queue, "a", limit)) <= few


def test_thousands_of_users_at_a_full_limit_do_not_delay_another_user(queue: FairQueue, redis: Redis) -> None:
    queue.push_batch([task(f"u{number}", limits=[TaskLimit("k", 1)]) for number in range(3000)], now=NOW)
    assert len(fetch(queue)) == 1
    push(queue, "other")
    found: list[Lease] = []
    assert count_commands(redis, partial(_add, found, queue)) < 60
    assert started(queue, found) == ["other"]


def test_a_user_with_thousands_of_open_limits_does_not_delay_another_user(queue: FairQueue, redis: Redis) -> None:
    """Its tasks go first only as long as it is at most ten tasks ahead, and a call looks at a bounded number of its limits."""
    queue.push_batch([task("a", limits=[TaskLimit(f"k{number}", 1)]) for number in range(3000)], now=NOW)
    push_many(queue, "b", 200)
    leases = []
    for _ in range(60):
        found: list[Lease] = []
        commands = count_commands(redis, partial(_add, found, queue))
        leases += found
        assert len(found) == 1
        assert commands < 300
    users = [lease.user_id for lease in leases]
    assert users.count("b") >= 60 / 2 - 11


def test_thousands_of_paused_users_at_a_limit_hardly_slow_down_a_call(queue: FairQueue, redis: Redis) -> None:
    for number in range(300):
        push(queue, f"u{number}", TaskLimit("k", 1))
        queue.user(f"u{number}").pause(now=NOW)
    push(queue, "free", TaskLimit("k", 1))
    found: list[Lease] = []
    for _ in range(10):
        commands = count_commands(redis, partial(_add, found, queue))
        assert commands < 1000
    assert started(queue, found) == ["free"]


def test_the_newest_push_decides_how_many_tasks_run(queue: FairQueue) -> None:
    push(queue, "a", TaskLimit("k", 4), number=10)
    leases = fetch(queue)
    assert len(leases) == 4
    push(queue, "a", TaskLimit("k", 2))
    finish(queue, *leases[:2])
    assert fetch(queue) == []
    finish(queue, leases[2])
    assert len(fetch(queue)) == 1
    push(queue, "a", TaskLimit("k", 5))
    assert len(fetch(queue)) == 3


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_higher_limit_lets_waiting_tasks_start(queue: FairQueue, is_of_user: bool) -> None:
    push(queue, "a", TaskLimit("k", 1, is_of_user=is_of_user), number=60)
    assert len(fetch(queue)) == 1
    push(queue, "a", TaskLimit("k", 50, is_of_user=is_of_user))
    assert len(fetch(queue) + fetch(queue)) == 49


def test_a_task_that_waits_for_its_retry_does_not_count_at_its_limit(queue: FairQueue) -> None:
    push(queue, "a", TaskLimit("k", 1), number=2)
    (lease,) = fetch(queue)
    queue.settle([Outcome.fail(lease, "an error", delay=5)], now=NOW)
    (second,) = fetch(queue)
    assert fetch(queue, now=NOW + 6) == []
    finish(queue, second, now=NOW + 6)
    assert [one.task_id for one in fetch(queue, now=NOW + 6)] == [lease.task_id]


def test_a_worker_for_some_users_starts_only_tasks_of_these_users(queue: FairQueue) -> None:
    limit = TaskLimit("k", 2)
    for user in "abcd":
        push(queue, user, limit, number=2)
    users = []
    while leases := queue.pop_batch(10, "w", ["c", "d"], now=NOW):
        users += started(queue, leases)
        finish(queue, *leases)
    assert sorted(users) == ["c", "c", "d", "d"]
    assert sorted(started(queue, fetch(queue))) == ["a", "b"]


def test_a_worker_serves_the_users_of_its_second_list_when_those_of_the_first_have_no_tasks(queue: FairQueue) -> None:
    push(queue, "b", TaskLimit("k", 1), number=2)
    assert started(queue, queue.pop_batch(10, "w", ["a"], ["b"], now=NOW)) == ["b"]


def test_each_shard_has_its_part_of_a_shared_limit(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", shards=2)
    for number in range(20):
        push(queue, f"u{number}", TaskLimit("k", 5), TaskLimit("own", 1, is_of_user=True), number=2)
    leases = fetch(queue) + fetch(queue) + fetch(queue)
    assert len(leases) == 5


def test_tasks_at_a_limit_start_on_a_shard_without_other_tasks(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", shards=2)
    push(queue, "a", TaskLimit("k", 2), number=6)
    push_many(queue, "b", 20)
    users = [lease.user_id for _ in range(10) for lease in fetch(queue, 3)]
    assert "a" in users


DAMAGE = {
    "a wrong count of running tasks": lambda redis, p: redis.hset(p + "limit:s:k", "running", 7),
    "a wrong count of waiting tasks": lambda redis, p: redis.hset(p + "limit:s:k", "waiting", 0),
    "a waiting task that is in no queue": lambda redis, p: redis.zpopmin(p + "limit_queue:1:a:s:k"),
    "a user that does not stand at the limit": lambda redis, p: redis.delete(p + "limit_users:normal:s:k"),
    "a lost record": lambda redis, p: redis.delete(p + "limit:s:k"),
    "a lost index": lambda redis, p: redis.delete(p + "limited:normal"),
    "a lost registry": lambda redis, p: redis.delete(p + "limits"),
    "a lost record of a limit of one user": lambda redis, p: redis.delete(p + "limit:u:1:b:own"),
    "a wrong count of admitted tasks": lambda redis, p: redis.hset(p + "limit:u:1:b:own", "admitted", 3),
    "a wrong number of all waiting tasks": lambda redis, p: redis.hset(p + "stats", "limited", 99),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_repair_restores_the_counts_of_limits(make_queue: MakeQueue, redis: Redis, damage: str) -> None:
    queue = make_queue(fair_by="tasks")
    push(queue, "a", TaskLimit("k", 2), number=3)
    push(queue, "b", TaskLimit("own", 1, is_of_user=True), number=3)
    (lease,) = fetch(queue, 1)
    DAMAGE[damage](redis, "fq:{default:0}:")
    assert queue.check_invariants() != []
    queue.repair(now=NOW)
    assert queue.check_invariants() == []
    total, leases = 0, [lease]
    while leases:
        finish(queue, *leases)
        total += len(leases)
        leases = fetch(queue)
    assert total == 6


def test_a_lost_task_does_not_keep_the_limit_of_its_user_full(queue: FairQueue, redis: Redis) -> None:
    limit = TaskLimit("k", 1, is_of_user=True)
    lost, waiting = push(queue, "a", limit, number=2)
    redis.delete(f"fq:{{default:0}}:task:{lost}", f"fq:{{default:0}}:payload:{lost}")
    assert fetch(queue) == []
    queue.sweep(now=NOW)
    assert [lease.task_id for lease in fetch(queue)] == [waiting]


def test_a_call_examines_at_most_eight_users_of_a_limit_that_can_not_start(queue: FairQueue, redis: Redis) -> None:
    """The members of an organization were standing at the limit when it was paused."""
    queue.push(task("holder", limits=[TaskLimit("k", 1)]), now=NOW)
    (holder,) = fetch(queue)
    for number in range(100):
        queue.user(f"u{number}").set_organization("g", now=NOW)
    queue.push_batch([task(f"u{number}", limits=[TaskLimit("k", 1)]) for number in range(100)], now=NOW)
    queue.organization("g").pause(now=NOW)
    push(queue, "z", TaskLimit("k", 1))
    queue.finish(holder, now=NOW)
    push_many(queue, "other", 20)
    found: list[Lease] = []
    while "z" not in started(queue, found):
        assert count_commands(redis, partial(_add, found, queue)) < 100
        assert len(found) <= 100 / 8 + 1, "each call starts a task of somebody else meanwhile"
