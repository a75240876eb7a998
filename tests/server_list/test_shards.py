"""Tests of queues of which each shard is on another server: they behave like those with all shards on one server."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from django_fairque.conf import RedisConfig, close_queues, get_queue
from django_fairque.conf.redis import aclose_client, close_client
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.conftest import queue
from tests.engine.sharding.sharded import CONFIG, SHARDS, users_of
from tests.engine.sharding.test_calls import TestLeases, TestSchedules
from tests.engine.sharding.test_dependencies import TestDependencies
from tests.engine.sharding.test_fairness import TestFairness as Fairness
from tests.engine.sharding.test_graphs import TestGraphs
from tests.engine.sharding.test_users_and_shards import TestPlaces
from tests.servers import Server

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it

__all__ = [
    "TestDependencies",
    "TestGraphs",
    "TestLeases",
    "TestPlaces",
    "TestSchedules",
    "queue",
]


class TestFairness:
    """One of those of a cluster: the rest decides in the same way, whatever the client is."""

    test_users = Fairness.test_users_of_a_full_shard_and_of_a_nearly_empty_one_are_served_equally


def open_queue(urls: list[str], shards: int = SHARDS) -> FairQueue:
    client = RedisConfig.model_validate({"url": urls}).create_redis_client()
    return FairQueue(client, config=CONFIG.model_copy(update={"shards": shards}))


def test_each_server_of_a_list_has_the_shard_of_its_position(queue: FairQueue, servers: list[Server]) -> None:
    queue.push_batch([task(f"user-{number}") for number in range(40)], now=NOW)
    for number, server in enumerate(servers):
        with server.client() as client:
            tags = {key.partition(b"}")[0] for key in client.keys("fq:*")}
        assert tags == {f"fq:{{default:{number}".encode()}
    assert [shard.node for shard in queue.get_shard_stats()] == [server.socket for server in servers]


def test_a_list_of_servers_in_another_order_is_refused(queue: FairQueue, urls: list[str]) -> None:
    queue.push_batch([task(f"user-{number}") for number in range(40)], now=NOW)
    for wrong in ([urls[1], urls[0], *urls[2:]], [*urls[:2], urls[3], urls[2]]):
        other = open_queue(wrong)
        with pytest.raises(ConfigurationError, match=r"has shard \d of it: REDIS.URL must name each server once"):
            other.push(task("user-1"))
        close_client(other.client)
    assert queue.get_stats(0).states["queued"] == 40


def test_a_list_with_another_number_of_servers_is_refused(queue: FairQueue, urls: list[str]) -> None:
    queue.push(task("user-1"), now=NOW)
    fewer = open_queue(urls[:2], 2)
    with pytest.raises(ConfigurationError, match=r"lies on 4 shards and is configured to lie on 2.*fairque_reshard"):
        fewer.push(task("user-1"))
    with pytest.raises(
        ConfigurationError, match=r"REDIS.URL names 2 servers: name all servers on which the queue lies"
    ):
        fewer.reshard(2)
    close_client(fewer.client)


@pytest.mark.parametrize(("old", "new"), [(1, 4), (2, 4), (4, 2), (4, 1)])
def test_an_empty_queue_moves_to_other_servers(urls: list[str], servers: list[Server], old: int, new: int) -> None:
    before = open_queue(urls[:old], old)
    users = [f"user-{number}" for number in range(20)]
    for number, user in enumerate(users, 2):
        before.user(user).set_weight(number, now=NOW)
    all_of_them = open_queue(urls, new)
    with pytest.raises(ConfigurationError, match=f"lies on {old} shards? and is configured to lie on {new}"):
        all_of_them.push(task("user-1"))
    assert all_of_them.reshard(new, now=NOW)[0] == old
    after = open_queue(urls[:new], new)
    after.push_batch([task(user) for user in users], now=NOW)
    assert [user.weight for user in after.user_stats(users)] == list(range(2, 22))
    for number, server in enumerate(servers):
        with server.client() as client:
            assert bool(client.keys("fq:*:user:*")) == (number < new)
    for opened in (before, all_of_them, after):
        close_client(opened.client)


def test_a_server_that_is_down_stops_only_its_users(queue: FairQueue, servers: list[Server]) -> None:
    queue.push(task("user-1"), now=NOW)
    hasty = FairQueue(queue.client, config=CONFIG.model_copy(update={"request_timeout": 0.2}))
    victims, others = users_of(2, 3), users_of(1, 3)
    servers[2].kill()
    try:
        with pytest.raises(RedisConnectionError):
            hasty.push(task(victims[0]))
        for user in others:
            hasty.push(task(user))
        leases = hasty.pop_batch(10, "w")
        assert set(others) <= {lease.user_id for lease in leases}
        hasty.settle([Outcome.finish(lease) for lease in leases])
        assert hasty.get_stats(0).missing_shards == (2,)
        assert [shard.is_up for shard in hasty.get_shard_stats()] == [True, True, False, True]
    finally:
        servers[2].start()
    hasty.push(task(victims[0]))
    assert [lease.user_id for lease in queue.pop_batch(10, "w")] == victims[:1]


def test_the_command_loads_functions_on_each_server(urls: list[str], servers: list[Server], settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": urls}}
    call_command("fairque_functions", stdout=io.StringIO())
    for server in servers:
        with server.client() as client:
            assert len(client.function_list()) == 1
    close_queues()


def test_the_health_command_shows_a_server_of_the_list_that_answers(urls: list[str], settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": urls}}
    get_queue().heartbeat("w", {})
    output = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("fairque_health", stdout=output)
    assert ended.value.code == 0
    assert output.getvalue().startswith("good\n")
    assert "standalone" in output.getvalue()


async def test_coroutines_use_a_list_of_servers(urls: list[str], servers: list[Server]) -> None:
    client = RedisConfig.model_validate({"url": urls}).create_async_redis_client()
    config = CONFIG.model_copy(update={"request_timeout": 0.2})
    queue = AsyncFairQueue(client, config=config)
    await queue.push_batch([task(f"user-{number}") for number in range(40)])
    leases = await queue.pop_batch(40, "w")
    assert len({lease.shard for lease in leases}) == SHARDS
    await queue.settle([Outcome.finish(lease) for lease in leases])
    assert (await queue.get_stats(0)).states["finished"] == len(leases)
    assert (await queue.users()).items
    assert await queue.check_invariants() == []
    servers[3].kill()
    try:
        assert (await queue.get_stats(0)).missing_shards == (3,)
        await queue.push(task(users_of(0, 1)[0]))
    finally:
        servers[3].start()
    await queue.push(task(users_of(3, 1)[0]))
    await aclose_client(client)


async def test_replication_is_confirmed_by_the_server_of_the_shard(urls: list[str]) -> None:
    from django_fairque.engine.model.errors import NotReplicatedError

    config = CONFIG.model_copy(update={"replicas_to_confirm": 1, "replication_timeout": 0.01, "request_timeout": 0.2})
    several = RedisConfig.model_validate({"url": urls})
    client, awaited = several.create_redis_client(), several.create_async_redis_client()
    with pytest.raises(NotReplicatedError, match="0 of 1 replicas"):
        FairQueue(client, config=config).push(task("user-1"))
    with pytest.raises(NotReplicatedError, match="0 of 1 replicas"):
        await AsyncFairQueue(awaited, config=config).push(task("user-2"))
    close_client(client)
    await aclose_client(awaited)
