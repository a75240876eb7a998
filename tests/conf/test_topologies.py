"""Clients on a real cluster of one node, and on a primary that a real sentinel names."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from django_fairque.conf import RedisConfig, aclose_queues, aget_queue, close_queues, get_queue

if TYPE_CHECKING:
    from .conftest import Configure


IS_NAMED = importlib.util.find_spec("redis.driver_info") is not None
"""Older versions of redis-py can't send the name of a library that uses them."""


def is_named(clients: list[dict[str, str]]) -> bool:
    """Whether one of the server's connections says that it is ours."""
    return any("django-fairque_v" in client["lib-name"] for client in clients)


async def test_clients_connect_to_a_cluster(cluster: int) -> None:
    config = RedisConfig(url=f"redis://127.0.0.1:{cluster}", cluster=True)
    with config.create_redis_client() as client:
        client.set("{a}b", "c")
        assert is_named(client.client_list()) == IS_NAMED
    other = config.create_async_redis_client()
    assert await other.get("{a}b") == b"c"
    assert is_named(await other.client_list()) == IS_NAMED
    await other.aclose()


async def test_clients_connect_to_the_primary_of_a_sentinel(sentinel: int, configure: Configure) -> None:
    configure({"REDIS": {"SENTINEL": {"NODES": [f"127.0.0.1:{sentinel}"], "SERVICE": "main"}, "DB": 2}})
    client: Any = get_queue().client
    assert is_named(client.client_list()) == IS_NAMED
    close_queues()
    client = (await aget_queue()).client
    await client.set("a", "b")
    assert (await client.info("keyspace")).keys() == {"db2"}
    assert is_named(await client.client_list()) == IS_NAMED
    await aclose_queues()
