"""Tests of the proxy's faults and of their effect on calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from django_fairque.engine.model.errors import RedisConnectionError, ServerRefusedError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .proxy import CUT, DROP, HOLE, PASS, SLOW, Proxy


@pytest.fixture
def server() -> Iterator[Server]:
    with Server("--appendonly", "yes") as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(f"{server.directory}/p.sock", server.socket, latency=0.01)
    yield proxy
    proxy.close()


def through(proxy: Proxy, server: Server, seconds: float) -> redis.Redis:
    return server.client(unix_socket_path=proxy.path, socket_timeout=seconds)


def task() -> Task:
    return Task.create("ann", 3, {})


@pytest.mark.slow  # the test takes 8 seconds
@pytest.mark.parametrize("mode", [DROP, CUT, SLOW])
def test_a_push_through_a_faulty_connection_has_one_effect(proxy: Proxy, server: Server, mode: str) -> None:
    with through(proxy, server, 0.5) as client:
        queue = FairQueue(client)
        with proxy.doing(mode, one_in=5):
            results = [queue.push(task()) for _ in range(20)]
        assert all(result.accepted for result in results)
        assert queue.get_stats(0).states["queued"] == 20
    assert proxy.hits


def test_a_connection_that_drops_all_data_recovers(proxy: Proxy, server: Server) -> None:
    with through(proxy, server, 0.1) as client:
        queue = FairQueue(client, "default", QueueConfig(request_timeout=0.3))
        queue.push(task())
        with proxy.doing(HOLE), pytest.raises(RedisConnectionError, match="can't be reached"):
            queue.push(task())
        assert proxy.mode == PASS
        assert queue.push(task()).accepted


class Treacherous(Proxy):
    """Executes a request, loses the reply, and then there is no memory left for its repetition."""

    server: Server

    def fate(self, mine: str, data: bytes) -> str:
        if mine != DROP or self.mode == PASS:
            return PASS
        self.mode = PASS
        with self.server.client() as client:
            client.config_set("maxmemory", 1)
        return DROP


def test_a_refusal_after_a_lost_reply_is_in_doubt(server: Server) -> None:
    proxy = Treacherous(f"{server.directory}/p.sock", server.socket)
    proxy.server = server
    with through(proxy, server, 1) as client:
        queue = FairQueue(client)
        queue.push(task())
        proxy.mode = DROP
        with pytest.raises(RedisConnectionError, match="may have been carried out") as caught:
            queue.push(task())
        assert not isinstance(caught.value, ServerRefusedError)
        assert queue.get_stats(0).states["queued"] == 2
        with pytest.raises(ServerRefusedError, match="out of memory"):
            queue.push(task())
    proxy.close()
