"""A queue with several shards works the same on a real cluster, where the shards lie on different servers."""

from __future__ import annotations

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.conftest import queue
from tests.engine.sharding.test_calls import TestLeases, TestSchedules
from tests.engine.sharding.test_dependencies import TestDependencies
from tests.engine.sharding.test_fairness import TestFairness
from tests.engine.sharding.test_graphs import TestGraphs
from tests.engine.sharding.test_pages import TestPages
from tests.engine.sharding.test_users_and_shards import TestNumber, TestPlaces
from tests.servers import Server

__all__ = [
    "TestDependencies",
    "TestFairness",
    "TestGraphs",
    "TestLeases",
    "TestNumber",
    "TestPages",
    "TestPlaces",
    "TestSchedules",
    "queue",
]


def test_shards_are_distributed_over_several_servers(queue: FairQueue, nodes: list[tuple[int, Server]]) -> None:
    queue.push_batch([task(f"user-{number}") for number in range(40)], now=NOW)
    held = []
    for _, server in nodes:
        with server.client() as client:
            held.append(len(client.keys("fq:*")))
    assert sum(1 for number in held if number) >= 2
