"""Nothing that a task leaves behind reaches another task: not in its thread, its event loop, or its database connection."""

from __future__ import annotations

import asyncio
import os
import time
import timeit
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.worker.common import isolation
from tests.worker.conftest import ROOT, WorkerProcess, Workers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push

CARRIERS = ROOT / "tests" / "worker" / "project" / "carriers.py"
LEAKS, WRONG = "tests:leaks", "tests:wrong"
KINDS = ("synchronous", "asynchronous", "batch", "asynchronous batch")
EVERYTHING = ("carry", "acarry", "carry_batch", "acarry_batch")
"""Tasks of each kind that set and read all carriers."""
VARIABLES = ("leave", "aleave", "leave_batch", "aleave_batch")
"""Tasks of each kind that set and read a context variable."""

AN_ASYNC_WORKER = """
import asyncio, django
django.setup()
from django_fairque import AsyncWorker
asyncio.run(AsyncWorker(["default"], {}).run())
"""
WAYS = ("forked", pytest.param("spawned", marks=pytest.mark.slow), "AsyncWorker")
TASKS = int(os.environ.get("ISOLATION_TASKS", "200"))
"""Tasks of each kind that set and read all carriers. Set it to 100000 for a long run."""
SECONDS = 300.0 + 0.1 * TASKS
"""The most seconds of a worker for all tasks of a test; on two idle cores it takes a tenth of that."""


class RunBurst(Protocol):
    def __call__(self, way: str, **environment: str) -> None: ...


@pytest.fixture
def run_burst(workers: Workers, tmp_path: Path) -> RunBurst:
    """Run a worker until nothing is left to do. Its connections to the database persist."""
    place = "postgres" if "TEST_DATABASE_ENGINE" in os.environ else str(tmp_path / "db.sqlite3")
    kept = {"TEST_MORE_TASKS": str(CARRIERS), "TEST_DATABASE": place, "TEST_CONN_MAX_AGE": "600"}

    def run(way: str, **environment: str) -> None:
        environment = {**kept, "close_database_connections": "true", **environment}
        if way == "AsyncWorker":
            worker: WorkerProcess = workers.start_program("-c", AN_ASYNC_WORKER.format("burst=True"), **environment)
        else:
            method = {"forked": "forkserver", "spawned": "spawn"}[way]
            worker = workers.start("--burst", "--start-method", method, "--max-memory", "0", **environment)
        assert worker.wait(SECONDS) == 0, worker.log

    return run


def push_alternating(queue: FairQueue, names: tuple[str, ...], count: int) -> None:
    """Push ``count`` tasks of each of these names, for acme and bob by turns."""
    slice_ = 2_000
    for first in range(0, count, slice_):
        pushed = [
            Task.create(
                user, 3, {"args": [[user, number]] if "batch" in name else [user, number], "kwargs": {}}, name=name
            )
            for number in range(first, min(first + slice_, count))
            for user in [("acme", "bob")[number % 2]]
            for name in names
        ]
        queue.push_batch(pushed)


def found(redis: Redis, where: str) -> dict[str, int]:
    entries: Any = redis.hgetall(where)
    return {key.decode(): int(number) for key, number in entries.items()}


def check(redis: Redis, queue: FairQueue, count: int) -> None:
    assert found(redis, LEAKS) == {}
    assert found(redis, WRONG) == {}
    assert queue.get_stats().totals["finished"] == count


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_no_state_passes_from_task_to_task(redis: Redis, queue: FairQueue, run_burst: RunBurst, way: str) -> None:
    push_alternating(queue, EVERYTHING, TASKS)
    run_burst(way)
    check(redis, queue, len(EVERYTHING) * TASKS)


def test_no_state_passes_between_tasks_in_loop_threads(redis: Redis, queue: FairQueue, run_burst: RunBurst) -> None:
    push_alternating(queue, ("carry_in_thread",), TASKS)
    run_burst("forked")
    check(redis, queue, TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_context_variable_passes_in_a_hundred_thousand_tasks(
    redis: Redis, queue: FairQueue, run_burst: RunBurst, way: str
) -> None:
    push_alternating(queue, VARIABLES, 100_000 // len(VARIABLES))
    run_burst(way)
    check(redis, queue, 100_000)
    redis.flushall()  # checking the invariants of all finished tasks would take as long as running them


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["forked", "AsyncWorker"])
def test_session_variables_stay_in_a_connection_that_is_kept(
    redis: Redis, queue: FairQueue, run_burst: RunBurst, way: str
) -> None:
    push_alternating(queue, EVERYTHING, 100)
    run_burst(way, close_database_connections="false")
    assert found(redis, LEAKS).keys() == {f"{kind}: session variable" for kind in KINDS}
    assert found(redis, WRONG) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["forked", "AsyncWorker"])
def test_no_state_passes_between_tasks_while_connections_stay_open(
    redis: Redis, queue: FairQueue, run_burst: RunBurst, way: str
) -> None:
    push_alternating(queue, EVERYTHING, 100)
    run_burst(way, close_database_connections="false", TEST_CONN_MAX_AGE="0")
    check(redis, queue, len(EVERYTHING) * 100)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["forked", "AsyncWorker"])
def test_a_cache_keeps_its_connection_from_task_to_task(
    server: Server, redis: Redis, push: Push, run_burst: RunBurst, way: str
) -> None:
    for number in range(200):
        push("use_cache", number)
        push("ause_cache", number)
    before = connections(redis)
    run_burst(way, TEST_CACHE=server.url)
    # Each of eight slots has a separate thread for the synchronous code of coroutines; the worker needs some more.
    assert connections(redis) - before < 100


def connections(redis: Redis) -> int:
    """Return the number of connections that the server has accepted."""
    stats: Any = redis.info("stats")
    return int(stats["total_connections_received"])


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["forked", "AsyncWorker"])
def test_a_context_variable_s_value_ends_with_its_task(
    queue: FairQueue, push: Push, run_burst: RunBurst, way: str
) -> None:
    names = ("hold", "ahold")
    pushed = {name: [push(name, fails, max_retries=0) for _ in range(100) for fails in (False, True)] for name in names}
    run_burst(way, concurrency="1")
    for ids in pushed.values():
        tasks = [queue.get_task(task_id) for task_id in ids]
        numbers = [task.result for task in tasks if task.state is TaskState.FINISHED]
        assert len(numbers) == 100
        assert max(numbers) <= 2


MAX_AGE = 2
"""Seconds for which a connection to the database may be used."""


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["processes", "loop"])
def test_a_connection_that_became_too_old_is_not_used(workers: Workers, tmp_path: Path, way: str) -> None:
    """The worker runs one task at a time, so each kind of task has one thread for its queries, and with it one connection."""
    environment = {"TEST_DATABASE": str(tmp_path / "db.sqlite3"), "TEST_CONN_MAX_AGE": str(MAX_AGE)}
    if way == "processes":
        workers.start("--concurrency", "1", **environment)
    else:
        workers.start_program("-c", AN_ASYNC_WORKER.format("concurrency=1"), **environment)

    def have_found_open_connections() -> list[bool]:
        return [bool(was_open) for _, was_open in workers.results(map(workers.run, ("query", "query_async")))]

    assert have_found_open_connections() == [False, False]
    assert have_found_open_connections() == [True, True]
    time.sleep(MAX_AGE + 0.1)
    assert have_found_open_connections() == [False, False]


def two_microseconds() -> float:
    """Return 2e-6, or more while the machine is slow: three sums of a hundred numbers, which take 0.8 µs each on a quiet one."""
    return max(2e-6, 3 * min(timeit.repeat(lambda: sum(range(100)), number=5_000, repeat=20)) / 5_000)


def test_a_context_costs_a_task_at_most_two_microseconds() -> None:
    def mean(function: Callable[[], object]) -> float:
        """The least of several measurements: other programs may have disturbed the others."""
        return min(timeit.repeat(function, number=5_000, repeat=20)) / 5_000

    def task() -> None:
        isolation.clean_up_connections(close=True)
        contexts.run(int)
        isolation.clean_up_connections(close=True)

    contexts = isolation.TaskContexts()
    assert mean(task) - mean(int) < two_microseconds()


async def test_a_context_costs_a_coroutine_at_most_two_microseconds() -> None:
    contexts = isolation.CoroutineContexts(close_connections=True)

    async def seconds(body: Callable[[], Awaitable[object]]) -> float:
        begun = time.perf_counter()
        for _ in range(5_000):
            contexts.new()
            await body()
            await body()  # before the task and after it
        return (time.perf_counter() - begun) / 5_000

    async def check() -> float:
        return min([await seconds(isolation.clean_up_coroutine) for _ in range(20)])

    try:
        assert await contexts.new().run(asyncio.ensure_future, check()) < two_microseconds()
    finally:
        contexts.end()
