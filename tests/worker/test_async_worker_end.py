"""Tests of the end of an `AsyncWorker`: it leaves nothing on the program's loop or in threads, and loses no lease."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import AsyncWorker, FairQueueConfig, task
from django_fairque.conf import get_config
from django_fairque.engine.model.records import TaskState
from django_fairque.tasks import registry
from tests.lab.campaign.proxy import CUT, PASS, Proxy

from .conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

    from .conftest import Push

pytestmark = pytest.mark.django_db(transaction=True)

STARTED: list[str] = []
ENDED: list[str] = []
THREADS: set[threading.Thread] = set()
"""Threads of the process or of other tests that existed when the test began."""


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "WORKER": {"POLL_INTERVAL": 0.2}}
    monkeypatch.setattr(registry, "_tasks", {})
    STARTED.clear()
    ENDED.clear()
    THREADS.clear()
    THREADS.update(threading.enumerate())

    @task(name="sleeps")
    async def sleeps() -> None:
        STARTED.append("sleeps")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # its cleaning up is not interrupted
            ENDED.append("sleeps")

    @task(name="spins")
    def spins() -> None:
        STARTED.append("spins")
        end = time.monotonic() + 60
        try:
            while time.monotonic() < end:
                time.sleep(0.005)
        finally:
            ENDED.append("spins")

    @task(name="together", batch=2)
    async def together(items: list[Any]) -> None:
        STARTED.append("together")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ENDED.append("together")  # takes the cancellation for its end

    @task(name="blocks")
    async def blocks() -> None:
        STARTED.append("blocks")
        time.sleep(2.5)  # noqa: ASYNC251 - on purpose


def push_all(push: Push) -> list[str]:
    return [push("sleeps"), push("spins"), push("together", 1), push("together", 2)]


def check_given_back(queue: FairQueue, ids: list[str]) -> None:
    assert sorted(ENDED) == ["sleeps", "spins", "together"]
    assert [queue.get_task(task_id).state for task_id in ids] == [TaskState.QUEUED] * len(ids)
    # Twice if a busy machine let it wait in the worker longer than MAX_BUFFERED_SECONDS before it began.
    assert [{attempt.kind for attempt in queue.history(task_id)} for task_id in ids] == [{"released"}] * len(ids)
    assert queue.workers() == []
    assert queue.check_invariants() == []


def threads_left() -> list[str]:
    left = set(threading.enumerate()) - THREADS
    return [thread.name for thread in left if thread.name.startswith("fairque-")]


async def begun() -> None:
    await asyncio.to_thread(eventually, lambda: sorted(STARTED) == ["sleeps", "spins", "together"])


async def test_a_canceled_async_worker_returns_all_its_tasks(queue: FairQueue, push: Push) -> None:
    before, ids = asyncio.all_tasks(), push_all(push)
    running = asyncio.ensure_future(AsyncWorker(concurrency=4).run())
    await begun()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert asyncio.all_tasks() == before
    check_given_back(queue, ids)
    await asyncio.to_thread(eventually, lambda: threads_left() == [])


async def test_a_second_cancellation_does_not_shorten_an_async_worker_s_shutdown(queue: FairQueue, push: Push) -> None:
    ids = push_all(push)
    running = asyncio.ensure_future(AsyncWorker(concurrency=4).run())
    await begun()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    check_given_back(queue, ids)


async def test_a_stopped_async_worker_returns_tasks_that_do_not_end(queue: FairQueue, push: Push) -> None:
    before, ids = asyncio.all_tasks(), push_all(push)
    worker = AsyncWorker(concurrency=4, shutdown_timeout=0.1)
    running = asyncio.ensure_future(worker.run())
    await begun()
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert asyncio.all_tasks() == before
    check_given_back(queue, ids)
    await asyncio.to_thread(eventually, lambda: threads_left() == [])


async def test_the_cleanup_of_canceled_tasks_is_not_interrupted(queue: FairQueue, push: Push) -> None:
    """With many, those that were canceled first are cleaning up when the last are canceled."""
    for _ in range(60):
        push("sleeps")
    worker = AsyncWorker(concurrency=60, shutdown_timeout=0.1)
    running = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(eventually, lambda: len(STARTED) == 60)
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert len(ENDED) == 60


def test_an_async_worker_returns_its_tasks_when_its_program_ends(queue: FairQueue, push: Push) -> None:
    ids = push_all(push)

    async def program() -> None:
        worker = asyncio.ensure_future(AsyncWorker(concurrency=4).run())
        await begun()
        assert not worker.done()

    asyncio.run(program())
    check_given_back(queue, ids)
    eventually(lambda: threads_left() == [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_loop_without_an_end_of_the_worker_loses_no_task(queue: FairQueue, push: Push) -> None:
    ids = push_all(push)

    def program() -> None:
        loop = asyncio.new_event_loop()
        running = loop.create_task(AsyncWorker(concurrency=4).run())
        loop.run_until_complete(begun())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        # Not "the worker is forgotten": it may not have reported itself yet.
        eventually(lambda: all(queue.get_task(task_id).state is TaskState.QUEUED for task_id in ids), 20)
        eventually(lambda: not queue.workers(), 20)
        assert not running.done()

    program()
    eventually(lambda: threads_left() == [])
    gc.collect()  # asyncio complains of coroutines that did not end: here, not in another test


async def test_a_blocked_loop_loses_no_lease(queue: FairQueue, push: Push) -> None:
    push("sleeps", timeout=30)
    blocked = push("blocks")
    worker = AsyncWorker(concurrency=2, lease_seconds=1.0)
    running = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(eventually, lambda: queue.get_task(blocked).state is TaskState.FINISHED)
    assert queue.get_stats().states["started"] == 1
    assert STARTED.count("blocks") == STARTED.count("sleeps") == 1
    running.cancel()
    await asyncio.wait([running])


async def test_the_connections_of_a_given_configuration_are_closed(push: Push, redis: Redis) -> None:
    @task(name="nothing")
    def nothing() -> None: ...

    push("nothing")
    before = len(redis.client_list())
    await asyncio.wait_for(AsyncWorker(get_config(), burst=True).run(), 20)
    # In a thread: the event loop closes sockets after run() has returned.
    await asyncio.to_thread(eventually, lambda: len(redis.client_list()) <= before)


class SlowToOpen(Proxy):
    """Passes everything on. If it ``is_slow``, the first request of a connection takes a while."""

    def __init__(self, path: str, target: str) -> None:
        super().__init__(path, target)
        self.is_slow = False
        self.opening = threading.Event()
        """A connection is being opened."""

    def fate(self, mine: str, data: bytes) -> str:
        if self.is_slow and mine == CUT and b"SETINFO" in data:
            self.opening.set()
            time.sleep(0.5)
        return PASS


@pytest.fixture
def way(server: Server) -> Iterator[SlowToOpen]:
    # Not pytest's `tmp_path`: the path of a socket has a hundred bytes at most.
    with tempfile.TemporaryDirectory(prefix="fq-") as name, closing(SlowToOpen(f"{name}/s", str(server.socket))) as way:
        yield way


def waiting(redis: Redis) -> list[str]:
    """The connections that wait for work."""
    return [
        connection["id"]
        for connection in redis.client_list()
        if connection["cmd"] == "bzpopmin" and "b" in connection["flags"]
    ]


@pytest.mark.parametrize("when", ["while it waits", "while it connects"])
@pytest.mark.parametrize("queues", [1, 2])  # only a worker of one queue sends a fetch behind its wait
async def test_a_wait_for_work_ends_with_the_worker(
    queue: FairQueue, push: Push, redis: Redis, way: SlowToOpen, queues: int, when: str
) -> None:
    @task(name="nothing")
    def nothing() -> None: ...

    before, task_id = len(redis.client_list()), push("nothing")
    names = [f"q{number}" if number else "default" for number in range(queues)]
    given = FairQueueConfig.model_validate({
        "redis": {"url": f"unix://{way.path}", "socket_timeout": 120},
        "worker": {"queues": names, "poll_interval": 60},
        "queues": {name: {} for name in names},
    })  # fmt: skip
    worker = AsyncWorker(given)
    running = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(eventually, lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    await asyncio.to_thread(eventually, lambda: len(waiting(redis)) == queues)
    if when == "while it connects":
        way.is_slow = True
        redis.client_kill_filter(_id=waiting(redis)[0])
        assert await asyncio.to_thread(way.opening.wait, 20)
    stopped = time.monotonic()
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert time.monotonic() - stopped < 10
    await asyncio.to_thread(eventually, lambda: len(redis.client_list()) <= before)
