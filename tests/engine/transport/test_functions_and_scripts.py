"""Commands as functions of the server, and as scripts where there are none: the same effects, nothing to configure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis as redis_py
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from django_fairque.engine.model.errors import LuaScriptError, ServerRefusedError
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from tests.engine.conftest import NOW, pop, task
from tests.servers import Server


def called(redis: Redis, name: str) -> int:
    return int(redis.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


@pytest.fixture
def without_functions(server: Server, redis: Redis) -> Iterator[Redis]:
    """A client whose user may not use functions."""
    redis.acl_setuser(
        "plain", enabled=True, nopass=True, categories=["+@all"], commands=["-function", "-fcall"], keys=["*"]
    )
    with redis_py.Redis(unix_socket_path=server.socket, username="plain", password="x") as client:
        yield client
    redis.acl_deluser("plain")


def round_trip(queue: FairQueue) -> None:
    queue.push(task(task_id="t"), now=NOW)
    queue.finish(pop(queue), now=NOW)
    assert queue.check_invariants() == []


def test_every_command_is_a_function_and_a_script(redis: Redis) -> None:
    redis.function_load(scripts.functions(), replace=True)
    for script in map(scripts.load, scripts.names()):
        assert redis.script_load(script.source) == script.sha
        flags = "allow-oom" in script.source.split("\n", 1)[0]
        (library,) = redis.function_list(f"fairque_{script.function.rpartition('_')[2]}")
        assert bool(re.search(rf"{script.function}'.[^\]}}]*?flags'\W+b'allow-oom", str(library))) == flags
        assert script.function in str(library)


def test_functions_are_loaded_once_and_together(redis: Redis) -> None:
    redis.function_flush("SYNC")
    redis.config_resetstat()
    for _ in range(3):
        queue = FairQueue(redis)
        queue.push(task(), now=NOW)
    assert (called(redis, "function|load"), called(redis, "fcall")) == (1, 4)
    round_trip(queue)
    queue.sweep(now=NOW)
    assert called(redis, "function|load") == 1
    assert called(redis, "evalsha") == called(redis, "eval") == 0


def test_variables_of_a_function_do_not_survive_its_call(queue: FairQueue) -> None:
    """The server keeps functions with their variables: users, buffers and counters of a call must not."""
    queue.push_batch([task(f"u{i}") for i in range(5)], now=NOW)
    queue.user("u1").pause(now=NOW)
    for i in range(3):
        queue.push(task(f"v{i}", execute_after=NOW + 5), now=NOW)
        assert len(queue.pop_batch(1, "w", now=NOW)) == 1
        assert queue.check_invariants() == []
    assert queue.sweep(now=NOW + 6).due == 3
    assert queue.sweep(now=NOW + 6).due == 0


def test_a_user_without_functions_uses_scripts(without_functions: Redis, redis: Redis) -> None:
    redis.config_resetstat()
    queue = FairQueue(without_functions)
    round_trip(queue)
    assert called(redis, "evalsha") >= 3
    assert not queue._transport.as_functions


def test_functions_notice_the_writes_of_scripts(without_functions: Redis, redis: Redis) -> None:
    """Functions keep the counters of a shard between calls. Scripts, and functions of another version, write them too."""
    queues = [FairQueue(redis), FairQueue(without_functions)]
    tokens = []
    for number in range(12):
        queues[number % 2].push(task(f"u{number % 3}"), now=NOW + number // 4)
        queues[number // 2 % 2].push(task("a"), now=NOW + number // 4)
        lease = queues[number % 3 % 2].pop("w", now=NOW + number // 4)
        assert lease is not None
        tokens.append(lease.token)
    assert tokens == list(range(1, 13))
    assert queues[0].get_stats().states["queued"] == 12
    assert queues[0].check_invariants() == []


async def test_coroutines_without_functions_use_scripts(without_functions: Redis, server: Server, redis: Redis) -> None:
    from redis.asyncio import Redis as Client

    client: AsyncRedis = Client(unix_socket_path=server.socket, username="plain", password="x")
    queue = AsyncFairQueue(client)
    await queue.push(task(), now=NOW)
    assert await queue.pop("w", now=NOW) is not None
    assert not queue._transport.as_functions
    await client.aclose()


def test_a_full_server_without_functions_can_finish_its_tasks(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.push(task(), now=NOW)
    redis.function_flush("SYNC")
    redis.config_set("maxmemory", 1)
    try:
        queue.finish(pop(queue), now=NOW)
        with pytest.raises(ServerRefusedError, match="out of memory"):
            queue.push(task(), now=NOW)
    finally:
        redis.config_set("maxmemory", 0)
    queue.push(task(), now=NOW)
    assert queue._transport.as_functions


def test_an_error_of_a_script_names_the_command(redis: Redis) -> None:
    queue = FairQueue(redis)
    redis.set("fq:{default:0}:user:u", "no hash")
    with pytest.raises(LuaScriptError, match="script 'push' failed"):
        queue.push(task("u"), now=NOW)
