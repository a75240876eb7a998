"""Calls over a client's own connections: what is sent arrives, and a connection is given back as it was taken."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis as redis_py
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from django_fairque.engine.model.errors import (
    LuaScriptError,
    RedisConnectionError,
    ServerRefusedError,
    TaskValidationError,
)
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Read, ScriptCall
from tests.engine.conftest import NOW, pop, task
from tests.servers import Server


class Watched(redis_py.Redis):
    """A client of the user's own that wants to see its commands."""

    seen: list[Any]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.seen.append(args[0])
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def test_a_client_that_overrides_its_methods_is_called_through_them(server: Server, redis: Redis) -> None:
    FairQueue(redis).push(task())  # the first push loads the function
    with Watched(unix_socket_path=server.socket) as client:
        client.seen = []
        FairQueue(client).push(task())
        assert client.seen == ["INFO", "SADD", "FCALL"]


def test_a_tracer_that_replaces_the_method_sees_every_call(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FairQueue(redis)
    queue.push(task())
    seen, original = [], redis_py.Redis.execute_command

    def traced(self: Redis, *args: Any, **options: Any) -> Any:
        seen.append(args[0])
        return original(self, *args, **options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis_py.Redis, "execute_command", traced)
    queue.push(task())
    monkeypatch.undo()
    monkeypatch.setattr(redis, "execute_command", lambda *args, **options: traced(redis, *args, **options))
    queue.push(task())
    assert seen == ["FCALL", "FCALL"]


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {"single_connection_client": True}])
def test_payloads_are_bytes_with_any_client_options(server: Server, redis: Redis, options: dict[str, Any]) -> None:
    assert redis.dbsize() == 0
    with server.client(**options) as client:
        queue = FairQueue(client)
        queue.push(task(payload="ä\0"), now=NOW)
        assert pop(queue).task.payload == "ä\0"


def test_a_queue_needs_only_one_connection_even_after_errors(server: Server, redis: Redis) -> None:
    """Given back after a reply, after an error, and after the server closed it."""
    with server.client(max_connections=1) as client:
        queue = FairQueue(client)
        for _ in range(3):
            queue.push(task())
            with pytest.raises(LuaScriptError):
                queue._transport.send(ScriptCall("push", ["a"], []))
            redis.client_kill_filter(_type="normal", skipme=True)
        assert queue.get_stats().states["queued"] == 3


def test_an_error_among_several_replies_is_raised_after_the_last_reply(server: Server, redis: Redis) -> None:
    redis.hset("hash", "field", "value")
    redis.set("text", "value")
    right = [("HGETALL", "hash"), ("GET", "text")]
    with server.client(max_connections=1) as client:
        transport = FairQueue(client)._transport
        for _ in range(3):
            with pytest.raises(LuaScriptError, match="WRONGTYPE"):
                transport.send(Read([right[0], ("HGETALL", "text"), ("GET", "hash"), right[1]]))
            assert transport.send(Read(right)) == [{b"field": b"value"}, b"value"]
            redis.client_kill_filter(_type="normal", skipme=True)


def test_a_late_reply_is_not_given_to_another_call(server: Server, redis: Redis) -> None:
    with server.client(socket_timeout=0.05, max_connections=1) as client:
        queue = FairQueue(client, config=QueueConfig(request_timeout=0.1))
        first = queue.push(task())
        redis.client_pause(60_000, all=False)
        with pytest.raises(RedisConnectionError, match="Timeout"):
            queue.push(task())
        redis.client_unpause()
        sent = task()
        assert queue.push(sent).task_id == sent.task_id != first.task_id


def test_several_threads_can_share_a_client(redis: Redis) -> None:
    queue = FairQueue(redis)
    made = [task(f"u{i % 5}") for i in range(200)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(queue.push, made))
    assert [result.task_id for result in results] == [task.task_id for task in made]
    assert queue.check_invariants() == []


def many(count: int = 1000) -> list[Task]:
    return [task(f"u{number % 3}", payload=number) for number in range(count)]


def test_slices_of_a_bulk_push_are_pipelined_and_keep_their_order(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(pipeline_batch_size=50))
    results = queue.push_batch(many(), now=NOW)
    assert [result.status for result in results] == ["accepted"] * 1000
    for user in range(3):
        served = [lease.payload for lease in queue.pop_batch(400, "w", [f"u{user}"], now=NOW)]
        assert served == list(range(user, 1000, 3))
    assert len(redis.connection_pool._available_connections) == 1  # the connection was returned to the pool


@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_a_broken_connection_loses_and_doubles_no_slice(
    server: Server, redis: Redis, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    queue = FairQueue(redis, config=QueueConfig(pipeline_batch_size=100))
    queue.push(task("other"), now=NOW)
    sent, original = [], pushing.push_args

    def interrupted(*args: Any, **options: Any) -> list[Any]:
        sent.append(1)
        if len(sent) == at + 1:
            with server.client() as other:
                other.client_kill_filter(_type="normal", skipme=True)
        return original(*args, **options)

    monkeypatch.setattr(pushing, "push_args", interrupted)
    assert len({result.task_id for result in queue.push_batch(many(), now=NOW)}) == 1000
    assert queue.get_stats().totals["pushed"] == 1001


def test_a_task_that_can_not_be_pushed_is_reported_before_any_push(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(pipeline_batch_size=10, max_payload_bytes=20))
    with pytest.raises(TaskValidationError, match="the limit"):
        queue.push_batch([*many(500), task(payload="x" * 50)], now=NOW)
    assert queue.get_stats().totals.get("pushed", 0) == 0


def test_a_refused_slice_raises_and_ends_the_bulk_push(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FairQueue(redis, config=QueueConfig(pipeline_batch_size=10, request_timeout=0.1))
    queue.push(task("other"), now=NOW)
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerRefusedError, match="out of memory"):
            queue.push_batch(many(), now=NOW)
    finally:
        redis.config_set("maxmemory", 0)
    assert queue.push(task("other"), now=NOW).accepted


async def test_a_coroutines_calls_go_over_the_clients_connections(redis: Redis, aredis: AsyncRedis) -> None:
    FairQueue(redis).push(task())  # the first push loads the function
    seen: list[Any] = []
    queue, original = AsyncFairQueue(aredis), aredis.execute_command
    await queue.push(task())

    async def traced(*args: Any, **options: Any) -> Any:
        seen.append(args[0])
        return await original(*args, **options)  # type: ignore[no-untyped-call]

    assert queue._transport._connection.is_usable
    aredis.execute_command = traced  # type: ignore[method-assign]
    assert (await queue.push(task())).accepted
    assert seen == ["FCALL"]


async def test_an_async_queue_needs_only_one_connection_even_after_errors(server: Server, redis: Redis) -> None:
    """Given back after a reply, after an error, after the server closed it, and after the caller was canceled."""
    async with server.async_client(max_connections=1) as client:
        queue = AsyncFairQueue(client)
        for _ in range(3):
            await queue.push(task())
            with pytest.raises(LuaScriptError):
                await queue._transport.send(ScriptCall("push", ["a"], []))
            redis.client_kill_filter(_type="normal", skipme=True)
        redis.client_pause(60_000, all=False)
        waiting = asyncio.create_task(queue.push(task()))
        while not redis.info("clients")["blocked_clients"]:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        redis.client_unpause()
        sent = task()
        assert (await queue.push(sent)).task_id == sent.task_id
