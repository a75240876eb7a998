"""Clients on a real cluster of one node, and on a primary that a real sentinel names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.conf import RedisConfig, aclose_queues, aget_queue, close_queues, get_queue

if TYPE_CHECKING:
    from .conftest import Configure


async def test_a_cluster(cluster: int) -> None:
    config = RedisConfig(url=f"redis://127.0.0.1:{cluster}", cluster=True)
    with config.create_redis_client() as client:
        client.set("{a}b", "c")
    other = config.create_async_redis_client()
    assert await other.get("{a}b") == b"c"
    await other.aclose()


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
