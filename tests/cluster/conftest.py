"""A real cluster of three primaries, and queues of several shards on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_fairque.conf import RedisConfig
from tests.cluster.six_nodes import Six
from tests.servers import Server
from tests.topologies import make_cluster
from tests.worker.conftest import WorkerProcess

NODES = 3
SHARDS = 12


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def servers() -> Iterator[Six]:
    with ExitStack() as stack:
        yield Six(lambda *args: stack.enter_context(Server(*args)))


@pytest.fixture
def six(servers: Six) -> Six:
    """Three primaries, each with a replica, as new."""
    servers.empty()
    return servers


@pytest.fixture
def run_worker(tmp_path: Path) -> Callable[..., AbstractContextManager[WorkerProcess]]:
    """Run a worker on the cluster that has a node at this address; at the end it is gone."""

    @contextmanager
    def run(url: str, *arguments: str, **environment: str) -> Iterator[WorkerProcess]:
        everywhere = {"TEST_CLUSTER": "yes", "TEST_SHARDS": str(SHARDS)}
        worker = WorkerProcess(url, tmp_path, *arguments, **{**everywhere, **environment})
        try:
            yield worker
        finally:
            worker.close()

    return run
