from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import aclose_client
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import Six
from tests.engine.conftest import task

from .away import CONFIG, DEADLINE, USERS, VICTIM, Away


@pytest.fixture
def away(six: Six) -> Away:
    return Away(six, VICTIM)


@pytest.fixture
def open_queue(away: Away) -> Iterator[Callable[..., FairQueue]]:
    """Return a function that opens a queue with a separate client, like a queue in another process."""
    opened = []

    def open_queue(shards: int = SHARDS) -> FairQueue:
        config = RedisConfig(url=away.url, cluster=True, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE)
        opened.append(config.create_redis_client())
        return FairQueue(opened[-1], config=CONFIG.model_copy(update={"shards": shards}))

    yield open_queue
    for client in opened:
        client.close()


@pytest.fixture
def patient_queue(away: Away) -> Iterator[FairQueue]:
    """The same queue with the usual deadlines, for calls while all nodes run: a busy machine needs more time."""
    with RedisConfig(url=away.url, cluster=True).create_redis_client() as client:
        yield FairQueue(client, config=QueueConfig(shards=SHARDS))


@pytest.fixture
async def async_queue(away: Away) -> AsyncIterator[AsyncFairQueue]:
    """The same queue for coroutines, when it has reached all nodes: the first replies of a busy machine can take longer."""
    config = RedisConfig(url=away.url, cluster=True, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE)
    client = config.create_async_redis_client()
    queue = AsyncFairQueue(client, config=CONFIG)

    async def reach_all() -> None:
        while (await queue.get_stats()).missing_shards:  # noqa: ASYNC110 - nothing says when a node replies
            await asyncio.sleep(0.01)

    try:
        await asyncio.wait_for(reach_all(), 20)
        yield queue
    finally:
        await aclose_client(client)


@pytest.fixture
def queue(open_queue: Callable[..., FairQueue], patient_queue: FairQueue) -> FairQueue:
    """With a task of each user."""
    patient_queue.push_batch([task(user) for user in USERS])
    return open_queue()
