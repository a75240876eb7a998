"""`get_queue` and `aget_queue`: who shares what with whom."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import aclose_queues, aget_queue, close_queues, get_config, get_queue, reset_config
from django_fairque.conf.current import _open_clients
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue

if TYPE_CHECKING:
    from redis import Redis

    from tests.conf.conftest import Configure
    from tests.servers import Server


@pytest.fixture(autouse=True)
def on_server(configure: Configure, server: Server, redis: Redis) -> None:
    configure({"REDIS": {"URL": server.url}, "QUEUE": {"PREFIX": "t"}, "QUEUES": {"mail": {"MAX_DELIVERIES": 2}}})


def test_a_queue_works_with_its_own_options(redis: Redis) -> None:
    queue = get_queue("mail")
    assert isinstance(queue, FairQueue)
    assert (queue.name, queue.config.prefix, queue.config.max_deliveries) == ("mail", "t", 2)
    queue.push(Task.create("u", Priority.NORMAL, {"n": 1}))
    assert redis.exists("t:{mail:0}:ring")


async def test_a_queue_for_coroutines_works(redis: Redis) -> None:
    queue = await aget_queue("mail")
    assert isinstance(queue, AsyncFairQueue)
    assert queue.config.max_deliveries == 2
    await queue.push(Task.create("u", Priority.NORMAL, {"n": 1}))
    assert redis.exists("t:{mail:0}:ring")
    await aclose_queues()


async def test_an_undeclared_queue_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"(?m)queue 'mial' is not declared in QUEUES: .*; did you mean 'mail'\?$"
    ):
        get_queue("mial")
    with pytest.raises(ConfigurationError, match="queue 'mial' is not declared"):
        await aget_queue("mial")
    await aclose_queues()


def test_the_queues_of_a_process_share_a_client() -> None:
    assert get_queue() is get_queue("default")
    assert get_queue() is not get_queue("mail")
    assert get_queue().client is get_queue("mail").client


def test_threads_that_ask_at_the_same_time_get_one_queue() -> None:
    close_queues()
    barrier = Barrier(8)

    def get() -> FairQueue:
        barrier.wait()
        return get_queue("mail")

    with ThreadPoolExecutor(8) as pool:
        queues = [future.result() for future in [pool.submit(get) for _ in range(8)]]
    assert len({id(queue) for queue in queues}) == 1


def test_each_event_loop_has_its_own_queue() -> None:
    async def get() -> tuple[AsyncFairQueue, AsyncFairQueue]:
        queues = await asyncio.gather(aget_queue(), aget_queue())
        await queues[0].health()
        await aclose_queues()
        return queues[0], queues[1]

    one, two = asyncio.run(get()), asyncio.run(get())
    assert one[0] is one[1]
    assert one[0] is not two[0]
    assert one[0].client is not two[0].client


def test_payloads_are_bytes_whatever_other_clients_return(configure: Configure, server: Server) -> None:
    configure({"REDIS": {"URL": server.url}})
    client: Any = get_queue().client
    assert client.echo("a") == b"a"
    with get_config().create_redis_client(decode_responses=True) as client:
        assert client.echo("a") == "a"


class TestReset:
    def test_a_reset_closes_the_old_client(self, redis: Redis) -> None:
        before = get_queue()
        client: Any = before.client
        mine = client.client_id()
        reset_config()
        assert mine not in {int(each["id"]) for each in redis.client_list()}
        assert get_queue() is not before

    async def test_the_old_asynchronous_client_is_closed_when_the_next_is_created(self, redis: Redis) -> None:
        before = await aget_queue()
        client: Any = before.client
        mine = await client.client_id()
        reset_config()
        after = await aget_queue()
        assert after is not before
        assert mine not in {int(each["id"]) for each in redis.client_list()}
        await aclose_queues()

    def test_closing_queues_that_were_never_opened_is_no_error(self) -> None:
        close_queues()
        close_queues()
        asyncio.run(aclose_queues())


FORK = """
import os, sys
import django
from django.conf import settings
settings.configure(FAIRQUE={"REDIS": {"URL": sys.argv[1]}})
django.setup()
from django_fairque.conf import get_queue

queue = get_queue()
mine = queue.client.client_id()
child = os.fork()
if child == 0:
    other = get_queue()
    assert other is not queue
    theirs = other.client.client_id()
    assert theirs != mine, "parent and child share a connection"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, "the child failed"
assert queue.client.client_id() == mine, "the child closed the parent's connection"
assert get_queue() is queue
queue.client.close()
"""


def test_a_forked_child_opens_its_own_connection(server: Server) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, server.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_clients_of_an_event_loop_that_has_ended_are_forgotten() -> None:
    async def get() -> asyncio.AbstractEventLoop:
        await aget_queue()
        return asyncio.get_running_loop()

    first = asyncio.run(get())  # kept alive here, as an open connection would keep it
    second = asyncio.run(get())
    assert first not in _open_clients.get().on_loops
    assert second in _open_clients.get().on_loops
