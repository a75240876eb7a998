"""Clients on a real cluster of one node, and on a primary that a real sentinel names."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from django_fairque.conf import RedisConfig, aclose_queues, aget_queue, close_queues, get_queue
from tests.servers import server_binary

from .test_clients import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .conftest import Configure

DEADLINE = 20.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def cluster(make_server: Any) -> int:
    """The port of a cluster's only node. It takes writes two seconds after its start, a constant of the server's."""
    port = next(port for port in iter(free_port, None) if port < 55_000)  # its bus listens 10,000 above
    server = make_server("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes")
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_for(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    return port


async def test_a_cluster(cluster: int) -> None:
    config = RedisConfig(url=f"redis://127.0.0.1:{cluster}", cluster=True)
    with config.create_redis_client() as client:
        client.set("{a}b", "c")
    other = config.create_async_redis_client()
    assert await other.get("{a}b") == b"c"
    await other.aclose()


@pytest.fixture
def sentinel(make_server: Any, tmp_path: Path) -> Iterator[int]:
    """The port of a sentinel that knows a primary as "main"."""
    primary, port = free_port(), free_port()
    make_server("--port", str(primary), "--bind", "127.0.0.1")
    file = tmp_path / "sentinel.conf"
    lines = [f"port {port}", "bind 127.0.0.1", f"dir {tmp_path}", f"sentinel monitor main 127.0.0.1 {primary} 1"]
    file.write_text("\n".join([*lines, ""]))
    process = subprocess.Popen([server_binary(), file, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, protocol=2) as client:
            wait_for(lambda: knows_primary(client))
        yield port
    finally:
        process.kill()
        process.wait()


def knows_primary(client: redis.Redis) -> bool:
    try:
        return "main" in client.sentinel_masters()
    except redis.ConnectionError:
        return False


def with_sentinel(port: int) -> dict[str, Any]:
    return {"REDIS": {"SENTINEL": {"NODES": [f"127.0.0.1:{port}"], "SERVICE": "main"}, "DB": 2}}


def test_a_primary_found_by_a_sentinel(sentinel: int, configure: Configure) -> None:
    configure(with_sentinel(sentinel))
    client: Any = get_queue().client
    client.set("a", "b")
    assert client.info("keyspace").keys() == {"db2"}
    close_queues()


async def test_a_primary_found_by_a_sentinel_without_blocking(sentinel: int, configure: Configure) -> None:
    configure(with_sentinel(sentinel))
    client: Any = (await aget_queue()).client
    await client.set("a", "b")
    assert (await client.info("keyspace")).keys() == {"db2"}
    await aclose_queues()
