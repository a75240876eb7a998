from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import pytest
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.acl import CallMode, rules
from tests.servers import ROLE_VARIABLE, Server

NOW = 2_000_000_000.0
"""When the tests' time begins: after any real clock, so that it is the engine's time."""


class MakeQueue(Protocol):
    def __call__(self, **options: Any) -> FairQueue: ...


@pytest.fixture
def client(server: Server, redis: Redis) -> Iterator[Redis]:
    """The client of the tests' queues: all-mighty, or of a user with a worker's rights."""
    mode = os.environ.get(ROLE_VARIABLE)
    if not mode:
        yield redis
        return
    redis.execute_command("ACL", "SETUSER", "w", "reset", "on", ">w", *rules("worker", cast("CallMode", mode)))
    if mode == "functions":
        redis.function_load(scripts.functions(), replace=True)
    with server.client(username="w", password="w") as client:
        yield client


@pytest.fixture
def make_queue(client: Redis) -> Iterator[MakeQueue]:
    """Queues with options of their own; after the test each must keep every invariant."""
    made: list[FairQueue] = []

    def make(**options: Any) -> FairQueue:
        made.append(FairQueue(client, f"q{len(made)}" if made else "default", QueueConfig(**options)))
        return made[-1]

    yield make
    for queue in made:
        assert queue.check_invariants() == []


@pytest.fixture
def queue(make_queue: MakeQueue) -> FairQueue:
    """A queue that charges by tasks, so that shares are whole numbers."""
    return make_queue(fair_by="tasks", retry_jitter=0)


def task(user: str = "u", priority: int = 3, payload: Any = None, **options: Any) -> Task:
    return Task.create(user, priority, payload, **options)


def push_many(queue: FairQueue, user: str, n: int, **options: Any) -> list[str]:
    """Push ``n`` tasks of one user; their ids."""
    results = queue.push_batch([task(user, **options) for _ in range(n)], now=NOW)
    return [result.task_id for result in results]


def pop(queue: FairQueue, now: float | None = NOW, worker: str = "w", **options: Any) -> Lease:
    lease = queue.pop(worker, now=now, **options)
    assert lease is not None
    return lease


def sweep_all(queue: FairQueue, now: float | None = NOW) -> None:
    """Sweep until nothing that is due is left."""
    while queue.sweep(now=now).more:
        pass


def read_pages(read_page: Callable[[str | None], Any], limit: int = 1000) -> list[Any]:
    """Return the items of all pages, none of which has more than ``limit``."""
    items, cursor = [], None
    while True:
        page = read_page(cursor)
        assert len(page.items) <= limit
        items += page.items
        if (cursor := page.cursor) is None:
            return items


def everything(redis: Redis) -> dict[bytes, bytes | None]:
    """Every key as bytes, but for the shard's clock, which any call moves, and the revision of its counters."""
    redis.hdel("fq:{default:0}:stats", "clock", "revision")
    return {key: redis.dump(key) for key in redis.scan_iter()}
