"""The costs of operations on the server, in commands and bytes: these counts don't vary, so they may fail a build."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Literal

import pytest
from redis import Redis

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.counting import commands, counted
from tests.engine.conftest import NOW, MakeQueue, push_many, sweep_all, task
from tests.engine.sharding.sharded import users_of
from tests.servers import Server
from tests.topologies import wait_for


def calls_of(found: dict[str, dict[str, Any]], name: str) -> int:
    calls: int = found.get(name, {"calls": 0})["calls"]
    return calls


@pytest.fixture
def loaded(queue: FairQueue) -> FairQueue:
    """100 users with work of every priority; scripts known, the first look done."""
    queue.push_batch([task(f"u{i % 100}", 1 + i // 100 % 5) for i in range(1500)], now=NOW)
    queue.pop("w", now=NOW)
    return queue


def test_a_pop_of_one_task_takes_at_most_16_server_commands(loaded: FairQueue, redis: Redis) -> None:
    assert commands(redis, lambda: loaded.pop("w")) <= 16


def test_a_pop_of_a_task_that_waited_for_months_takes_at_most_20_commands(loaded: FairQueue, redis: Redis) -> None:
    now = NOW + 100 * 86_400
    loaded.sweep(now=now)
    sweep_all(loaded, now)
    loaded.pop("w", lease=1e7, now=now)
    assert commands(redis, lambda: loaded.pop("w", lease=1e7, now=now)) <= 20


def test_a_pop_of_50_tasks_takes_at_most_7_commands_a_task(loaded: FairQueue, redis: Redis) -> None:
    assert commands(redis, lambda: loaded.pop_batch(50, "w")) / 50 <= 7.5


def test_the_cost_of_a_pop_does_not_depend_on_the_number_of_users(redis: Redis) -> None:
    queue, figures = FairQueue(redis, config=QueueConfig(fair_by="tasks")), []
    for users in (100, 10_000):
        queue.push_batch([task(f"{users}:{i}") for i in range(users) for _ in range(2)], now=NOW)
        queue.pop("w", now=NOW)
        figures.append(commands(redis, lambda: queue.pop("w")))
        figures.append(commands(redis, lambda: queue.pop_batch(50, "w")))
    assert figures[:2] == figures[2:]


@pytest.mark.parametrize("size", [1, 20, 100])
def test_serving_a_list_of_users_writes_the_lag_of_few_users_a_task(queue: FairQueue, redis: Redis, size: int) -> None:
    users = [f"u{i}" for i in range(size)]
    queue.push_batch([task(user) for user in users for _ in range(8)], now=NOW)

    def serve() -> None:
        for _ in range(4 * size):
            assert queue.pop("w", users, now=NOW)

    serve()
    found = counted(redis, serve)
    pops = 4 * size
    assert (calls_of(found, "hgetall") + calls_of(found, "hget")) / pops <= size + 1
    assert found["hset"]["calls"] / pops <= 3 + min(size, 8)


def test_checking_a_list_of_users_reads_one_of_them(redis: Redis) -> None:
    """Workers for a list look at each shard ten times a second."""
    queue = FairQueue(redis, config=QueueConfig(shards=2))
    users = users_of(0, 50, shards=2)
    queue.push_batch([task(user) for user in users], now=NOW)
    shard = queue.shards[0]

    def look() -> None:
        assert shard.settle([], users=users, steal="*", worker="w", now=NOW).has_more

    look()
    found = counted(redis, look)
    assert "hset" not in found
    assert calls_of(found, "hgetall") + calls_of(found, "hget") <= 2


@pytest.mark.parametrize("kind", ["paused", "capped", "throttled"])
def test_users_that_can_not_be_served_do_not_make_a_pop_slower(loaded: FairQueue, redis: Redis, kind: str) -> None:
    before = commands(redis, lambda: loaded.pop("w"))
    for i in range(1000):
        user = loaded.user(f"{kind}{i}")
        if kind == "paused":
            user.pause()
        elif kind == "capped":
            user.set_max_running(1)
        else:
            user.set_rate("1/d")
    loaded.push_batch([task(f"{kind}{i}") for i in range(1000) for _ in range(2)])
    if kind != "paused":
        loaded.pop_batch(1000, "w", lease=1e6)
        loaded.pop_batch(1000, "w", lease=1e6)
    assert commands(redis, lambda: loaded.pop("w")) <= before


@pytest.fixture
def in_organizations(queue: FairQueue) -> FairQueue:
    """200 users in 20 organizations beside 20 of none, with work of every priority."""
    names = [f"u{i}" for i in range(220)]
    for i, name in enumerate(names[:200]):
        queue.user(name).set_organization(f"g{i % 20}", now=NOW)
    queue.push_batch([task(names[i % 220], 1 + i // 220 % 5) for i in range(2200)], now=NOW)
    queue.pop("w", now=NOW)
    return queue


def test_a_pop_with_organizations_takes_at_most_20_server_commands(in_organizations: FairQueue, redis: Redis) -> None:
    assert max(commands(redis, lambda: in_organizations.pop("w")) for _ in range(60)) <= 20


def test_a_pop_of_50_tasks_with_organizations_takes_few_commands(in_organizations: FairQueue, redis: Redis) -> None:
    assert max(commands(redis, lambda: in_organizations.pop_batch(50, "w")) / 50 for _ in range(5)) <= 14


def costs_of_pops(redis: Redis, organizations: int, size: int) -> list[int]:
    """Return the costs of a pop of one task and of 50, from organizations of this size."""
    queue = FairQueue(redis, f"{organizations}x{size}")
    names = [f"{i}.{j}" for i in range(organizations) for j in range(size)]
    for name in names:
        queue.user(name).set_organization(f"g{name.partition('.')[0]}", now=NOW)
    queue.push_batch([task(name) for name in names for _ in range(3)], now=NOW)
    queue.pop("w", now=NOW)
    return [commands(redis, lambda: queue.pop("w")), commands(redis, lambda: queue.pop_batch(50, "w"))]


def test_the_cost_of_a_pop_does_not_depend_on_organizations(redis: Redis) -> None:
    assert costs_of_pops(redis, 60, 1) == costs_of_pops(redis, 60, 20) == costs_of_pops(redis, 600, 2)


def test_a_queue_without_organizations_has_no_key_of_theirs(loaded: FairQueue, redis: Redis) -> None:
    assert [key for key in redis.scan_iter() if b"group" in key or b"ring:" in key] == []


@pytest.mark.parametrize("has_organizations", [False, True])
@pytest.mark.parametrize("lanes", [("urgent",), ("bulk",), ("urgent", "bulk")])
def test_each_lane_in_use_costs_a_pop_one_server_command(
    queue: FairQueue, redis: Redis, lanes: list[Lane], has_organizations: bool
) -> None:
    def push(lane: Lane) -> None:
        for number in range(5):
            queue.user(user := f"{lane}{number}").set_organization(f"of {user}" if has_organizations else None, now=NOW)
            push_many(queue, user, 9, lane=lane)

    def cost_of_pop() -> int:
        return commands(redis, lambda: queue.pop("w", now=NOW))

    push("normal")
    cost_of_pop()
    without = cost_of_pop()
    for lane in lanes:
        push(lane)
    cost_of_pop()
    assert max(cost_of_pop() for _ in range(30)) <= without + len(lanes)


@pytest.mark.parametrize(("fair_by", "most"), [("tasks", 2), ("time", 3)])
def test_a_pop_for_users_with_tasks_in_all_lanes_costs_few_server_commands_more(
    make_queue: MakeQueue, redis: Redis, fair_by: Literal["tasks", "time"], most: int
) -> None:
    """By time, lane bulk is also read if it is owed less than its first task."""
    queue, lanes = make_queue(fair_by=fair_by), Counter[str]()

    def most_of_60_pops() -> int:
        leases, costs = queue.pop_batch(8, "w", now=NOW), []
        for moment in range(60):
            costs.append(commands(redis, lambda: leases.extend(queue.pop_batch(1, "w", now=NOW))))
            lanes[leases[-1].lane] += 1
            queue.settle([Outcome.finish(leases.pop(0), took=0.7)], now=NOW + moment)
        queue.purge()
        return max(costs)

    def push(*lanes: Lane) -> None:
        for user in range(5):
            for lane in lanes:
                push_many(queue, f"u{user}", 40, lane=lane)

    push("normal")
    without = most_of_60_pops()
    lanes.clear()
    push("urgent", "normal", "bulk")
    assert most_of_60_pops() <= without + most
    assert set(lanes) == {"urgent", "normal", "bulk"}


@pytest.mark.parametrize("lane", ["urgent", "bulk"])
def test_a_user_that_enters_or_leaves_a_lane_costs_one_server_command(
    queue: FairQueue, redis: Redis, lane: Lane
) -> None:
    def costs(user: str, lane: Lane) -> tuple[int, int]:
        """Return the costs of a push and of a start in this lane by a user that also has a task in lane normal."""
        push_many(queue, user, 2)
        queue.settle([Outcome.finish(lease) for lease in queue.pop_batch(2, "w", now=NOW)], now=NOW)
        push_many(queue, user, 1)
        push = commands(redis, lambda: queue.push(task(user, lane=lane), now=NOW))
        leases = [] if lane == "urgent" else queue.pop_batch(1, "w", now=NOW)
        pop = commands(redis, lambda: leases.extend(queue.pop_batch(1, "w", now=NOW)))
        assert leases[-1].lane == lane
        queue.purge()
        return push, pop

    costs("ann", "normal")
    push, pop = costs("bob", "normal")
    more = costs("cid", lane)
    assert more[0] <= push + 1
    assert more[1] <= pop + 2  # the start also reads the lane


def test_a_task_without_limits_costs_at_most_one_command_more_while_others_wait_at_a_limit(
    queue: FairQueue, redis: Redis
) -> None:
    push_many(queue, "b", 20)
    figures = []
    for _ in range(2):
        leases: list[Lease] = []
        queue.push(task("b"), now=NOW)
        figures.append(commands(redis, lambda: queue.push(task("b"), now=NOW)))
        figures.append(commands(redis, lambda found=leases: found.extend(queue.pop_batch(1, "w", now=NOW))))  # type: ignore[misc]
        figures.append(commands(redis, lambda found=leases: queue.finish(found[0], now=NOW)))  # type: ignore[misc]
        assert leases[0].user_id == "b"
        if len(figures) == 3:
            assert redis.keys("*limit*") == []
            queue.push_batch([task("a", limits=[TaskLimit("k", 1)]) for _ in range(50)], now=NOW)
            assert queue.pop("w", now=NOW) is not None
    assert all(later <= first + most for first, later, most in zip(figures[:3], figures[3:], (0, 1, 0), strict=True))


def test_a_push_takes_at_most_13_server_commands(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 1)
    assert commands(redis, lambda: queue.push(task("a"))) <= 13
    assert commands(redis, lambda: queue.push_batch([task("a") for _ in range(300)])) / 300 <= 1.2


def test_a_function_reads_the_counters_again_only_after_another_writer(queue: FairQueue, redis: Redis) -> None:
    """To read them took a quarter of the server's time for a push."""
    queue.push(task("a"))
    if not queue._transport.as_functions:
        pytest.skip("scripts keep nothing between calls")
    assert counted(redis, lambda: queue.push(task("a")))["hmget"]["calls"] == 1  # the call reads only the revision
    redis.hset("fq:{default:0}:stats", "revision", "of somebody else")
    assert counted(redis, lambda: queue.push(task("a")))["hmget"]["calls"] == 2


def test_a_push_reads_and_writes_its_user_s_record_once(queue: FairQueue, redis: Redis) -> None:
    queue.push(task("a"))
    found = counted(redis, lambda: queue.push(task("a")))
    assert (calls_of(found, "get"), calls_of(found, "mset")) == (1, 2), "the payload is written by the other one"


def test_a_call_writes_each_user_s_record_once(queue: FairQueue, redis: Redis) -> None:
    """Also if tasks of the user ended and the next ones are handed out in the same call."""
    queue.push_batch([task(f"u{i % 10}") for i in range(40)])
    leases = queue.pop_batch(10, "w")
    outcomes = [Outcome.finish(lease, took=0.01) for lease in leases]
    found = counted(redis, lambda: queue.settle(outcomes, 10, worker="w"))
    counters, ended, started = 1, 10, 10
    assert calls_of(found, "hset") == counters + ended + started
    assert (calls_of(found, "mset"), calls_of(found, "mget")) == (1, 1), "the records of all users"


def test_a_bulk_push_of_many_users_reads_and_writes_each_once_or_twice(queue: FairQueue, redis: Redis) -> None:
    queue.push(task("a"))
    tasks = [task(f"u{i % 100}") for i in range(2000)]  # unsorted, each of the seven calls would have all users
    assert commands(redis, lambda: queue.push_batch(tasks)) / 2000 <= 1.4


def test_settling_a_batch_takes_few_server_commands_a_task(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 200)
    leases = queue.pop_batch(100, "w")
    outcomes = [Outcome.finish(lease, took=0.01) for lease in leases]
    assert commands(redis, lambda: queue.settle(outcomes, 100, worker="w")) / 100 <= 6.5


def test_an_idle_worker_s_fetch_takes_few_commands(queue: FairQueue, redis: Redis) -> None:
    queue.pop("w")
    assert commands(redis, lambda: queue.settle([], 8, worker="w")) <= 6


def test_a_queued_task_takes_few_bytes(make_server: MakeServer) -> None:
    """On a server that has held nothing else: what others have freed, and loaded, would be measured too."""
    server = make_server()
    made = [task(f"user-{i % 100}", payload="x" * 198, name="library.analyse") for i in range(10_000)]
    push_and_leave(server, made[:1000])  # the server now has its tables and scripts
    before = used_memory(server)
    push_and_leave(server, made[1000:])
    # A table that has just grown is there twice until the server has moved its entries, some at each command and each tick.
    with contextlib.suppress(AssertionError):
        wait_for(lambda: (used_memory(server) - before) / 9_000 <= 600)
    assert (used_memory(server) - before) / 9_000 <= 600


def push_and_leave(server: Server, tasks: list[Task]) -> None:
    with server.client() as redis:
        FairQueue(redis).push_batch(tasks)


def used_memory(server: Server) -> int:
    """Without the buffers of connections, and what scripts have left to their collector of garbage: 2 MB now and then."""
    with server.client() as redis:
        redis.function_flush("SYNC")
        redis.script_flush("SYNC")
        redis.slowlog_reset()
        wait_for(lambda: redis.info("clients")["connected_clients"] == 1)
        return int(redis.info("memory")["used_memory"])


def test_tasks_of_many_users_take_few_server_commands_each(queue: FairQueue, redis: Redis) -> None:
    """Each call ends one task of each of 100 users, and fetches one of each of 100 others."""
    if not queue._transport.as_functions:
        pytest.skip("scripts keep nothing between calls")
    queue.push_batch([task(f"u{number}") for _ in range(5) for number in range(200)])
    leases = queue.settle([], 100, worker="w").leases
    for _ in range(3):
        leases = queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], 100, worker="w").leases
    outcomes = [Outcome.finish(lease, took=0.01) for lease in leases]
    assert commands(redis, lambda: queue.settle(outcomes, 100, worker="w")) / 100 <= 6.5
    made = [task(f"new{number}") for number in range(1000)]
    assert commands(redis, lambda: queue.push_batch(made)) / 1000 <= 2.2
