"""Reads of a queue whose shards lie on several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import aclose_client
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import slot_of
from tests.engine.conftest import task
from tests.servers import Server

Nodes = list[tuple[int, Server]]

CONFIG = QueueConfig(shards=SHARDS)


@pytest.fixture
def queue(redis: Any) -> FairQueue:
    made = FairQueue(redis, config=CONFIG)
    made.push_batch([task(f"user-{number}") for number in range(60)])
    return made


def owner(nodes: Nodes, shard: int) -> str:
    with nodes[0][1].client() as client:
        slots = client.execute_command("CLUSTER", "SLOTS")
    port = next(entry[2][1] for entry in slots if entry[0] <= slot_of(shard) <= entry[1])
    return f"127.0.0.1:{port}"


async def test_each_shard_names_its_node(queue: FairQueue, nodes: Nodes, url: str) -> None:
    found = queue.get_shard_stats()
    assert [(stats.shard, stats.node) for stats in found] == [(shard, owner(nodes, shard)) for shard in range(SHARDS)]
    assert sum(stats.depth for stats in found) == 60
    assert len({stats.node for stats in found}) > 1
    client = RedisConfig(url=url, cluster=True).create_async_redis_client()
    assert await AsyncFairQueue(client, config=CONFIG).get_shard_stats() == found
    await aclose_client(client)


def test_health_examines_the_memory_of_every_node(queue: FairQueue, nodes: Nodes) -> None:
    """Whichever of them is in danger."""
    for shard in (0, 5, 11):
        (server,) = (server for port, server in nodes if owner(nodes, shard).endswith(f":{port}"))
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] + 1000)
            try:
                assert any("memory is" in reason for reason in queue.health().reasons)
            finally:
                client.config_set("maxmemory", 0)
        assert not any("memory is" in reason for reason in queue.health().reasons)


def test_one_full_node_of_several_degrades_the_queue_but_it_is_not_down(queue: FairQueue, nodes: Nodes) -> None:
    """The users of the others are served as before: down is a queue that takes nothing."""
    clients = [server.client() for _port, server in nodes]
    try:
        for number, client in enumerate(clients, 1):
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            health = queue.health()
            assert "new tasks are refused" in health.reasons[0]
            assert health.status == ("down" if number == len(clients) else "degraded")
    finally:
        for client in clients:
            client.config_set("maxmemory", 0)
            client.close()


def test_calls_without_a_key_go_to_the_node_of_their_shard(queue: FairQueue, nodes: Nodes) -> None:
    """A shard is served by its node alone: neither the clock nor the function is asked of another."""
    for port, server in nodes:
        others = [other for node_port, other in nodes if node_port != port]
        mine = [
            shard for shard in queue.shards if owner(nodes, shard.config.shards and _number(shard)).endswith(f":{port}")
        ]
        for other in others:
            with other.client() as client:
                client.config_resetstat()
        for shard in mine:
            shard.push(task(f"user-{port}"))
            shard.pop_batch(3, "w")
            shard.get_stats()
        for other in others:
            with other.client() as client:
                used = set(client.info("commandstats"))
            assert not used & {"cmdstat_time", "cmdstat_fcall", "cmdstat_command|getkeys", "cmdstat_zcard"}
        assert server.alive


def _number(shard: FairQueue) -> int:
    return int(shard.display_name.rpartition("/")[2])
