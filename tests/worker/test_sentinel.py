"""A primary that is replaced while producers and workers are busy: nothing that was acknowledged is lost."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig
from django_fairque.conf.redis import SentinelConfig, close_client
from django_fairque.engine.model.errors import NotReplicatedError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.topologies import SERVICE, free_port, make_replica, sentinels

from .conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.servers import Server

LONGEST = 30.0
"""Seconds without a push: sentinels need some two, after a vote that was split four more, and the replica its time to follow."""


class Producer(threading.Thread):
    """Pushes one task after the other; knows which were acknowledged, and for how long none was."""

    def __init__(self, queue: FairQueue, users: Sequence[str] = ("ann",)) -> None:
        super().__init__(daemon=True)
        self._queue = queue
        self._users = itertools.cycle(users)
        self._ended = False
        self.acknowledged: list[str] = []
        self.unconfirmed = 0
        self.longest_pause = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        last = time.monotonic()
        while not self._ended:
            task = Task.create(next(self._users), 3, {"args": [1, 1], "kwargs": {}}, name="add")
            try:
                self._queue.push(task)
            except NotReplicatedError:
                self.unconfirmed += 1
                continue
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.error = error
                return
            self.acknowledged.append(task.task_id)
            self.longest_pause = max(self.longest_pause, time.monotonic() - last)
            last = time.monotonic()
            time.sleep(0.002)

    def stop(self) -> None:
        self._ended = True
        self.join(30)
        assert self.error is None, self.error


class Setup:
    """A primary, a replica, three sentinels, and a queue that is found through them. With one replica a push that it confirmed
    is on whatever is promoted; of several, all would have to confirm."""

    def __init__(self, servers: dict[int, Server], ports: list[int]) -> None:
        self.servers = servers
        self.nodes = [("127.0.0.1", port) for port in ports]
        self._sentinel = ports[0]

    def primary(self) -> int:
        with redis.Redis(port=self._sentinel, protocol=2) as client:
            return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def fail_over(self) -> None:
        with redis.Redis(port=self._sentinel, protocol=2) as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def kill(self) -> None:
        """Its data stay on its disk; an operator starts it again when the other one is the primary."""
        before = self.primary()
        self.servers[before].kill()
        eventually(lambda: self.primary() != before, 30)
        self.servers[before].start()

    @contextmanager
    def queue(self) -> Iterator[FairQueue]:
        config = FairQueueConfig(
            redis=RedisConfig(sentinel=SentinelConfig(nodes=self.nodes, service=SERVICE)),
            queue=QueueConfig(replicas_to_confirm=1, request_timeout=30),
        )
        client = config.create_redis_client()
        yield FairQueue(client, "default", config.queue)
        close_client(client)


@pytest.fixture
def setup(make_server: MakeServer, tmp_path: Path) -> Iterator[Setup]:
    ports = [free_port() for _ in range(2)]
    primary = make_server("--port", str(ports[0]), "--bind", "127.0.0.1", "--appendonly", "yes")
    replica = make_replica(make_server, primary, "--port", str(ports[1]), "--bind", "127.0.0.1", "--appendonly", "yes")
    with sentinels(tmp_path, ports[0], replicas=1) as found:
        yield Setup({ports[0]: primary, ports[1]: replica}, found)


@pytest.mark.slow
@pytest.mark.parametrize("event", [Setup.fail_over, Setup.kill], ids=["failover", "kill"])
def test_a_failover_under_load_loses_no_task(setup: Setup, tmp_path: Path, event: Callable[[Setup], None]) -> None:
    before = setup.primary()
    worker = WorkerProcess(
        setup.servers[before],
        tmp_path,
        TEST_SENTINELS=",".join(f"{host}:{port}" for host, port in setup.nodes),
        lease_seconds="6",
    )
    with setup.queue() as queue:
        producer = Producer(queue)
        try:
            worker.wait_ready()
            producer.start()
            eventually(lambda: len(producer.acknowledged) > 50)
            event(setup)
            eventually(lambda: setup.primary() != before, 30)
            there = len(producer.acknowledged)
            eventually(lambda: len(producer.acknowledged) > there + 50 or not producer.is_alive(), 30)
            producer.stop()
            eventually(lambda: not (queue.get_stats().depth["NORMAL"] or queue.get_stats().states["started"]), 60)
            states = [queue.get_task(task_id).state.value for task_id in producer.acknowledged]
            assert set(states) == {"finished"}
            assert queue.check_invariants() == []
            assert producer.longest_pause < LONGEST
            print(f"{len(states)} acknowledged, none lost; longest pause {producer.longest_pause:.1f} s")  # noqa: T201
            assert worker.stop() == 0
        finally:
            worker.close()
            producer.stop()
