"""`AsyncFairQueue` is `FairQueue`, awaited: the same methods, the same arguments, the same effects."""

from __future__ import annotations

import inspect

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from django_fairque.engine.dead_letters.dead_letters import DeadLetterQueue
from django_fairque.engine.dependencies.dependencies import XCom
from django_fairque.engine.model.errors import LuaScriptError, RedisConnectionError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.async_queue import (
    AsyncDeadLetterQueue,
    AsyncFairQueue,
    AsyncOrganizationQueue,
    AsyncSchedules,
    AsyncUserQueue,
    AsyncXCom,
)
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.schedules import Schedules
from django_fairque.engine.users.organizations import OrganizationQueue
from django_fairque.engine.users.users import UserQueue
from tests.engine.conftest import NOW, task

PAIRS = [
    (FairQueue, AsyncFairQueue),
    (DeadLetterQueue, AsyncDeadLetterQueue),
    (UserQueue, AsyncUserQueue),
    (OrganizationQueue, AsyncOrganizationQueue),
    (XCom, AsyncXCom),
    (Schedules, AsyncSchedules),
]


DO_NOT_ASK = {
    "user",
    "organization",
    "limit",
    "xcom",
    "with_retry_timeout",
    "cancel_retries_when",
    "create_shard_scheduler",
}
"""Methods that send nothing to the server, and so need no `await`."""


def public(kind: type) -> dict[str, list[tuple[str, object, object]] | None]:
    """Return the arguments of each public method, also of inherited ones; None for attributes that are no methods."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(value).parameters.values()]
        if callable(value)
        else None
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("sync", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_sync_and_async_classes_have_the_same_methods(sync: type, awaited: type) -> None:
    assert public(sync) == public(awaited)
    methods = {name for name, arguments in public(sync).items() if arguments is not None}
    assert {name for name in methods if not inspect.iscoroutinefunction(getattr(awaited, name))} <= DO_NOT_ASK
    assert not any(inspect.iscoroutinefunction(getattr(sync, name)) for name in methods)


async def test_the_sync_and_async_queues_have_the_same_attributes(redis: Redis, aredis: AsyncRedis) -> None:
    sync, awaited = FairQueue(redis), AsyncFairQueue(aredis)
    assert {name for name in vars(sync) if name[0] != "_"} == {name for name in vars(awaited) if name[0] != "_"}
    pairs = dict(PAIRS)
    for name in ("dlq", "schedules"):
        assert pairs[type(getattr(sync, name))] is type(getattr(awaited, name))


async def test_an_async_queue_runs_a_task_to_its_end(aredis: AsyncRedis) -> None:
    queue = AsyncFairQueue(aredis)
    results = await queue.push_batch([task("a", payload=n) for n in range(3)], now=NOW)
    first, second = await queue.pop_batch(2, "w", now=NOW)
    await queue.finish(first, {"n": 1}, now=NOW)
    await queue.fail(second, "no", retry=False, now=NOW)
    assert (await queue.get_task(results[0].task_id)).result == {"n": 1}
    (entry,) = (await queue.dlq.list()).items
    await queue.dlq.requeue(entry.entry_id, now=NOW)
    await queue.user("a").set_max_running(1, now=NOW)
    await queue.user("a").set_organization("g", now=NOW)
    await queue.organization("g").set_weight(2, now=NOW)
    assert (await queue.organizations()).items == ["g"]
    assert (await queue.organization("g").stats()).weight == 2
    assert (await queue.organization("g").members()).items == ["a"]
    lease = await queue.pop("w", now=NOW)
    assert lease is not None
    settled = await queue.settle([Outcome.release(lease)], fetch=1, now=NOW)
    assert (settled.statuses, [lease.task_id for lease in settled.leases]) == (["released"], [lease.task_id])
    assert (await queue.settle([Outcome.release(settled.leases[0])], now=NOW)).statuses == ["released"]
    assert await queue.user("a").purge(now=NOW) == 2
    assert (await queue.get_stats()).states["canceled"] == 2
    assert await queue.check_invariants() == []
    assert (await queue.health()).status == "degraded"


async def test_waiting_for_work_ends_with_a_push(aredis: AsyncRedis) -> None:
    queue = AsyncFairQueue(aredis)
    assert await queue.wait_for_work(0.01) is False
    await queue.push(task("a"))
    assert await queue.wait_for_work(10) is True


@pytest.mark.thorough
async def test_an_async_queue_raises_the_same_errors(aredis: AsyncRedis) -> None:
    await aredis.set("fq:{default:0}:stats", "squatter")
    with pytest.raises(LuaScriptError):
        await AsyncFairQueue(aredis).push(task("a"))
    import redis.asyncio

    client = redis.asyncio.Redis(unix_socket_path="/nonexistent/s.sock")
    with pytest.raises(RedisConnectionError):
        await AsyncFairQueue(client, config=QueueConfig(request_timeout=0)).push(task("a"))
    await client.aclose()


async def test_an_async_queue_loads_lost_scripts_again(aredis: AsyncRedis) -> None:
    queue = AsyncFairQueue(aredis)
    await queue.push(task("a"))
    await aredis.script_flush()
    assert await queue.pop("w") is not None
