"""Pushes that count only when replicas have them."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis import Redis

from django_fairque.engine.leasing.lease_ops import Fetch, PrefetchingWait
from django_fairque.engine.model.errors import NotReplicatedError, RedisConnectionError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.engine.conftest import NOW, task
from tests.servers import Server
from tests.topologies import free_port, make_replica, wait_for

SAFE = QueueConfig(replicas_to_confirm=1, replication_timeout=0.5)
PATIENT = SAFE.model_copy(update={"replication_timeout": 20.0})
"""For calls that the replica is to confirm, however busy the machine is."""


@pytest.fixture
def primary(make_server: MakeServer) -> Server:
    return make_server("--port", str(free_port()), "--bind", "127.0.0.1")


@pytest.fixture
def client(primary: Server) -> Iterator[Redis]:
    with primary.client() as client:
        yield client


@pytest.fixture
def replica(primary: Server, make_server: MakeServer) -> Server:
    return make_replica(make_server, primary)


def test_an_acknowledged_push_is_on_a_replica(client: Redis, replica: Server) -> None:
    queue = FairQueue(client, config=PATIENT)
    ids = [
        queue.push(task(), now=NOW).task_id,
        *(result.task_id for result in queue.push_batch([task(), task()], now=NOW)),
    ]
    with replica.client() as there:
        assert all(there.exists(f"fq:{{default:0}}:payload:{task_id}") for task_id in ids)
    assert queue.check_invariants() == []
    assert "confirmations" not in queue.get_stats().totals


async def test_an_acknowledged_push_of_a_coroutine_is_on_a_replica(primary: Server, replica: Server) -> None:
    async with primary.async_client() as client:
        pushed = await AsyncFairQueue(client, config=PATIENT).push(task(), now=NOW)
        with replica.client() as there:
            assert there.exists(f"fq:{{default:0}}:payload:{pushed.task_id}")
        os.kill(replica.pid, signal.SIGSTOP)
        with pytest.raises(NotReplicatedError):
            await AsyncFairQueue(client, config=SAFE).push(task(), now=NOW)


def test_a_push_to_too_few_replicas_raises_its_own_error(client: Redis, replica: Server) -> None:
    queue = FairQueue(client, config=SAFE)
    FairQueue(client, config=PATIENT).push(task(task_id="before"), now=NOW)
    os.kill(replica.pid, signal.SIGSTOP)
    again = task(task_id="t")
    for _ in range(2):  # the second writes no task: it must not count as confirmed either
        with pytest.raises(
            NotReplicatedError, match=r"0 of 1 replicas .* whether it outlives a failover is unknown"
        ) as no:
            queue.push(again, now=NOW)
        assert (no.value.confirmed, no.value.wanted) == (0, 1)
        assert isinstance(no.value, RedisConnectionError)
    os.kill(replica.pid, signal.SIGCONT)
    wait_for(lambda: bool(client.wait(1, 100)))
    assert queue.push(again, now=NOW).status == "duplicate"
    assert [lease.task_id for lease in queue.pop_batch(9, "w", now=NOW)] == ["before", "t"]


def test_replicas_are_not_waited_for_unless_configured(client: Redis) -> None:
    client.config_resetstat()
    FairQueue(client).push(task(), now=NOW)
    assert "cmdstat_wait" not in client.info("commandstats")


def test_an_error_of_the_primary_is_raised_unchanged(client: Redis, replica: Server) -> None:
    client.set("fq:{default:0}:users", "squatter")
    with pytest.raises(Exception, match="WRONGTYPE"):
        FairQueue(client, config=SAFE).push(task(), now=NOW)


class TestMovedAddress:
    """A name, or an address that is handed on, leads to another node after a failover; the old one may still answer."""

    @pytest.fixture
    def address(self, primary: Server, replica: Server) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as directory:  # a path of a socket must be short
            path = Path(directory, "s")
            path.symlink_to(primary.socket)
            yield path

    @staticmethod
    def fail_over(primary: Server, replica: Server, address: Path) -> None:
        with primary.client() as old, replica.client() as new:
            old.set("written last", 1)
            wait_for(lambda: bool(old.wait(1, 100)))  # the replica has all writes before the takeover
            port = new.config_get("port")["port"]
            new.replicaof("NO", "ONE")
            address.unlink()
            address.symlink_to(replica.socket)
            old.replicaof("127.0.0.1", port)

    def test_calls_reach_the_new_primary_after_a_failover_of_the_address(
        self, primary: Server, replica: Server, address: Path
    ) -> None:
        with redis.Redis(unix_socket_path=str(address)) as client, replica.client() as there:
            queue = FairQueue(client)
            queue.push(task(task_id="before"), now=NOW)
            self.fail_over(primary, replica, address)
            queue.push(task(task_id="after"), now=NOW)
            assert queue.wait_for_work(1.0)
            assert there.exists("fq:{default:0}:payload:after")

    async def test_calls_of_coroutines_reach_the_new_primary_after_a_failover(
        self, primary: Server, replica: Server, address: Path
    ) -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(address)) as client:
            queue = AsyncFairQueue(client)
            await queue.push(task(task_id="before"), now=NOW)
            self.fail_over(primary, replica, address)
            await queue.push(task(task_id="after"), now=NOW)
            with replica.client() as there:
                assert there.exists("fq:{default:0}:payload:after")

    def test_a_wait_for_work_reaches_a_new_primary(self, primary: Server, replica: Server, address: Path) -> None:
        with redis.Redis(unix_socket_path=str(address)) as client, replica.client() as there:
            queue = FairQueue(client)
            queue.heartbeat("w", {}, now=NOW)
            wait = PrefetchingWait(queue, 30.0)
            assert wait.send_fetch(Fetch(1, "w"))
            self.fail_over(primary, replica, address)
            FairQueue(there).push(task(task_id="after"), now=NOW)
            woken, settled = wait.end()
            assert not woken
            assert settled is not None
            assert [lease.task_id for lease in settled.leases] == ["after"]
