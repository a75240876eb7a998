"""A worker of coroutines while a node is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from django_fairque import AsyncWorker
from django_fairque import task as task_of
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import registry
from tests.cluster.conftest import SHARDS
from tests.worker.conftest import eventually

from .away import DEADLINE, USERS, Away, stopped

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it


@pytest.mark.slow  # the test starts a cluster
@pytest.mark.django_db(transaction=True)  # the worker may close a connection that an earlier test opened
@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_async_workers_serve_living_shards_first_and_missing_ones_later(
    queue: FairQueue, away: Away, settings: Settings, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    redis = {"URL": away.url, "CLUSTER": True, "SOCKET_TIMEOUT": 3, "SOCKET_CONNECT_TIMEOUT": DEADLINE}
    queues = {"SHARDS": SHARDS, "REQUEST_TIMEOUT": DEADLINE}
    settings.FAIRQUE = {"REDIS": redis, "QUEUE": queues, "WORKER": {"POLL_INTERVAL": 1}}

    @task_of(name="awaited")
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        return number

    queue.purge()
    for number, user in enumerate(USERS):
        queue.push(Task.create(user, 3, {"args": [number], "kwargs": {}}, name="awaited"))

    async def finished(count: int) -> None:
        await asyncio.to_thread(eventually, lambda: queue.get_stats(0).states["finished"] == count, 30)

    worker = AsyncWorker(concurrency=4)
    if how == "killed":
        away.kill()
        working = asyncio.ensure_future(worker.run())
        await finished(len(away.others))
        away.start()
    else:
        with stopped(away):
            working = asyncio.ensure_future(worker.run())
            await finished(len(away.others))
    await finished(len(USERS))
    worker.stop()
    await working
    await aclose_queues()
    assert queue.check_invariants() == []
