"""Four servers that know nothing of each other, each with one shard of every queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis.commands.core import CoreCommands

from django_fairque.conf import RedisConfig
from django_fairque.engine.transport.server_list import ServerList
from tests.engine.sharding.sharded import SHARDS
from tests.servers import Server


class ClientForTests(ServerList, CoreCommands):
    """With the methods of redis-py, which send to the first server, and the keys of all servers."""

    _event_dispatcher: Any = None

    def keys(self, pattern: Any = "*", **_: Any) -> Any:
        return [key for node in self.get_nodes() for key in node.client.keys(pattern)]


@pytest.fixture(scope="session")
def all_servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server("--appendonly", "yes", "--appendfsync", "always")) for _ in range(SHARDS)]


@pytest.fixture
def servers(all_servers: list[Server]) -> list[Server]:
    """All of them run, and are empty."""
    for server in all_servers:
        server.start()
        with server.client() as client:
            client.flushall()
            client.function_flush()
    return all_servers


@pytest.fixture
def urls(servers: list[Server]) -> list[str]:
    return [server.url for server in servers]


@pytest.fixture
def redis(urls: list[str]) -> Iterator[Any]:
    """The client of all servers in place of one server's."""
    with RedisConfig.model_validate({"url": urls}).create_redis_client() as client:
        assert isinstance(client, ServerList)
        yield ClientForTests(client.get_nodes())
