"""A client can be made for a cluster that is down, or for a server outside of one. Its first call raises an error."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import aclose_client, close_client
from django_fairque.engine.model.errors import RedisConnectionError, ServerRefusedError, UnsupportedServerError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.conftest import MakeServer
from tests.servers import Server
from tests.topologies import free_port, make_cluster, wait_for
from tests.worker.conftest import WorkerProcess, eventually

IMPATIENT = QueueConfig(shards=SHARDS, request_timeout=0.3)
PATIENT = QueueConfig(request_timeout=60)


def config_of(port: int) -> RedisConfig:
    return RedisConfig(url=f"redis://127.0.0.1:{port}", cluster=True)


def node(make_server: MakeServer, *args: str) -> int:
    port = free_port()
    make_server("--port", str(port), *args)
    return port


def test_a_client_connects_to_the_cluster_only_when_it_is_used(nodes: Sequence[tuple[int, Server]]) -> None:
    """Made, asked what it is, and closed, without a word to any node; then once for all who come at once."""
    port, server = nodes[0]
    with server.client() as one:
        before = one.info("stats")["total_connections_received"]
        unused = config_of(port).create_redis_client()
        FairQueue(unused, config=IMPATIENT)
        close_client(unused)
        assert one.info("stats")["total_connections_received"] == before
        calls = one.info("commandstats").get("cmdstat_cluster|slots", {"calls": 0})["calls"]
        with config_of(port).create_redis_client() as client:
            together, found = threading.Barrier(8), list[Any]()

            def ask() -> None:
                together.wait()
                found.append(client.get_node_from_key("a").name)

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1
        assert one.info("commandstats")["cmdstat_cluster|slots"]["calls"] == calls + 1


def test_a_server_that_is_none_of_a_cluster_is_reported_at_once(make_server: MakeServer) -> None:
    words = r"none of a cluster \(cluster-enabled no\); leave REDIS's CLUSTER out"
    with (
        config_of(node(make_server)).create_redis_client() as client,
        pytest.raises(UnsupportedServerError, match=words),
    ):
        FairQueue(client, config=PATIENT).get_stats()


def test_a_missing_password_is_reported_at_once(make_server: MakeServer) -> None:
    ((port, server),) = make_cluster(make_server, 1)
    with server.client() as one:
        one.config_set("requirepass", "x")
        with (
            config_of(port).create_redis_client() as client,
            pytest.raises(ServerRefusedError, match="user name or password"),
        ):
            FairQueue(client, config=PATIENT).get_stats()
        one.config_set("requirepass", "")


async def test_coroutines_get_an_error_if_the_server_is_none_of_a_cluster(make_server: MakeServer) -> None:
    client = config_of(node(make_server)).create_async_redis_client()
    with pytest.raises(UnsupportedServerError, match="none of a cluster"):
        await AsyncFairQueue(client, config=PATIENT).get_stats()
    await aclose_client(client)


@pytest.mark.slow
def test_a_cluster_that_is_down_is_waited_for(make_server: MakeServer) -> None:
    ((port, server),) = make_cluster(make_server, 1)
    server.kill()
    with config_of(port).create_redis_client() as client:
        queue = FairQueue(client, config=IMPATIENT)
        for _ in range(2):
            with pytest.raises(
                RedisConnectionError, match=r"can't be reached: .*; is it running where REDIS points to"
            ):
                queue.get_stats()
        server.start()
        with server.client() as one:
            wait_for(lambda: one.cluster("info")["cluster_state"] == "ok")
        assert queue.get_stats().states["queued"] == 0


@pytest.mark.slow
def test_a_worker_may_start_before_its_cluster(make_server: MakeServer, tmp_path: Path) -> None:
    ((port, server),) = make_cluster(make_server, 1)
    server.kill()
    worker = WorkerProcess(
        f"redis://127.0.0.1:{port}", tmp_path, TEST_CLUSTER="yes", TEST_SHARDS=str(SHARDS), TEST_SCHEDULE="noop"
    )
    try:
        eventually(lambda: worker.health().get("reasons"), 10)
        assert "the server does not answer" in worker.health()["reasons"]
        assert worker.log.splitlines()[0].endswith("; trying again until it works")
        server.start()
        eventually(lambda: worker.health().get("status") == "healthy")
        with config_of(port).create_redis_client() as client:
            queue = FairQueue(client, config=IMPATIENT)
            eventually(lambda: [schedule.name for schedule in queue.schedules.list()] == ["noop"])
        assert worker.stop() == 0
    finally:
        worker.close()


def test_a_worker_ends_if_its_server_is_none_of_a_cluster(make_server: MakeServer, tmp_path: Path) -> None:
    worker = WorkerProcess(f"redis://127.0.0.1:{node(make_server)}", tmp_path, TEST_CLUSTER="yes")
    try:
        assert worker.wait() == 1
        assert worker.log.splitlines()[-1].startswith("CommandError: the server is none of a cluster")
    finally:
        worker.close()
