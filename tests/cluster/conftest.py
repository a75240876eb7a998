"""A real cluster of three primaries, and queues of several shards on it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import RedisConfig
from tests.servers import Server
from tests.topologies import make_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[tuple[int, Server]]]:
    """Port and server of each primary."""
    with ExitStack() as stack:
        yield make_cluster(lambda *args: stack.enter_context(Server(*args)), NODES)


@pytest.fixture
def url(nodes: list[tuple[int, Server]]) -> str:
    for _, server in nodes:
        with server.client() as client:
            client.flushall()
    return f"redis://127.0.0.1:{nodes[0][0]}"


@pytest.fixture
def redis(url: str) -> Iterator[Any]:
    """The cluster's client in place of a server's."""
    with RedisConfig(url=url, cluster=True).create_redis_client() as client:
        yield client
