"""The pool of clients that are made from a configuration: the connection that was released last is used next."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from django_fairque.conf.redis import RedisConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.transport.connection import AsyncFastConnectionPool, FastConnectionPool
from tests.engine.conftest import task
from tests.servers import Server


@pytest.fixture
def client(server: Server, redis: Redis) -> Iterator[Any]:
    assert redis.dbsize() == 0
    made: Any = RedisConfig(url=f"unix://{server.socket}", max_connections=4).create_redis_client()
    assert type(made.connection_pool) is FastConnectionPool
    with made:
        yield made


def test_successive_calls_use_one_connection(client: Any, redis: Redis) -> None:
    others = {connection["id"] for connection in redis.client_list()}
    queue = FairQueue(client)
    queue.push(task())
    ids = {client.client_id() for _ in range(3)}
    queue.push(task())
    assert {client.client_id()} == ids
    assert {connection["id"] for connection in client.client_list()} - others == {str(number) for number in ids}


def test_a_connection_that_the_server_closed_is_replaced(client: Any, redis: Redis) -> None:
    before = client.client_id()
    redis.client_kill_filter(_id=str(before))
    assert client.client_id() != before
    assert FairQueue(client).push(task()).accepted


def test_a_closed_client_connects_again(client: Any) -> None:
    before = client.client_id()
    client.connection_pool.disconnect()
    assert client.client_id() != before
    before = client.client_id()
    client.close()
    assert client.client_id() != before


def test_every_connection_can_be_used_at_once_and_no_more(client: Any) -> None:
    pool, names = client.connection_pool, FairQueue(client)._transport._connection._names
    for _ in range(2):
        taken = [pool.get_connection(*names) for _ in range(4)]
        assert len({id(connection) for connection in taken}) == 4
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(client.client_id)
            pool.release(taken.pop())
            assert waits.result(timeout=10)
        for connection in taken:
            pool.release(connection)


def test_threads_share_the_connection_pool(client: Any) -> None:
    queue, together = FairQueue(client), threading.Barrier(8)

    def push(number: int) -> None:
        if number < 8:
            together.wait(10)
        queue.push(task(f"u{number % 5}"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(push, range(200)))
    assert queue.get_stats().states["queued"] == 200
    assert queue.check_invariants() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_opens_its_own_connections(client: Any) -> None:
    before = client.client_id()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, str(client.client_id()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) != before
    assert client.client_id() == before
    os.close(reading)
    os.close(writing)


@pytest.fixture
async def async_client(server: Server, redis: Redis) -> AsyncIterator[Any]:
    assert redis.dbsize() == 0
    made: Any = RedisConfig(url=f"unix://{server.socket}", max_connections=4).create_async_redis_client()
    assert type(made.connection_pool) is AsyncFastConnectionPool
    async with made:
        yield made


async def test_successive_calls_of_a_coroutine_use_one_connection(async_client: Any, redis: Redis) -> None:
    others = {connection["id"] for connection in redis.client_list()}
    queue = AsyncFairQueue(async_client)
    await queue.push(task())
    ids = {await async_client.client_id() for _ in range(3)}
    await queue.push(task())
    assert {connection["id"] for connection in await async_client.client_list()} - others == {
        str(number) for number in ids
    }


async def test_a_coroutines_connection_that_the_server_closed_is_replaced(async_client: Any, redis: Redis) -> None:
    before = await async_client.client_id()
    redis.client_kill_filter(_id=str(before))
    assert (await AsyncFairQueue(async_client).push(task())).accepted
    assert await async_client.client_id() != before


async def test_a_closed_asynchronous_client_connects_again(async_client: Any, redis: Redis) -> None:
    before = await async_client.client_id()
    await async_client.connection_pool.disconnect(inuse_connections=False)
    assert str(before) not in {connection["id"] for connection in redis.client_list()}
    between = await async_client.client_id()
    await async_client.aclose()
    assert len({before, between, await async_client.client_id()}) == 3


async def test_coroutines_can_use_every_connection_at_once_and_no_more(async_client: Any) -> None:
    pool, names = async_client.connection_pool, AsyncFairQueue(async_client)._transport._connection._names
    for _ in range(2):
        taken = [await pool.get_connection(*names) for _ in range(4)]
        assert len({id(connection) for connection in taken}) == 4
        waiting = asyncio.create_task(async_client.client_id())
        await asyncio.sleep(0)
        assert not pool.can_get_connection()
        await pool.release(taken.pop())
        assert await waiting
        for connection in taken:
            await pool.release(connection)


async def test_coroutines_share_the_connection_pool(async_client: Any) -> None:
    queue = AsyncFairQueue(async_client)
    await asyncio.gather(*(queue.push(task(f"u{number % 5}")) for number in range(200)))
    assert (await queue.get_stats()).states["queued"] == 200
    assert await queue.check_invariants() == []
