"""Pushes that count only when replicas have them, on a cluster."""

from __future__ import annotations

import os
import signal

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import aclose_client
from django_fairque.engine.model.errors import NotReplicatedError
from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.six_nodes import Six
from tests.engine.conftest import NOW, task

pytestmark = pytest.mark.thorough

SHARDS = 6
SAFE = QueueConfig(replicas_to_confirm=1, replication_timeout=0.5, shards=SHARDS)
USERS = [f"user-{number}" for number in range(20)]


def is_on_the_replica(six: Six, user: str, task_id: str) -> bool:
    shard = compute_bucket(user) % SHARDS
    (replica,) = six.replicas_of(six.primary_of(shard))
    with six.client(replica) as there:
        there.execute_command("READONLY")
        return f"fq:{{default:{shard}}}:payload:{task_id}".encode() in there.keys("*:payload:*")


@pytest.mark.slow  # the test starts a cluster with replicas
def test_an_acknowledged_push_is_on_a_replica(six: Six) -> None:
    with RedisConfig(url=six.url(), cluster=True).create_redis_client() as client:
        queue = FairQueue(client, config=SAFE)
        pushed = {user: queue.push(task(user), now=NOW).task_id for user in USERS}
        assert all(is_on_the_replica(six, user, task_id) for user, task_id in pushed.items())
        assert queue.check_invariants() == []


async def test_an_acknowledged_push_of_a_coroutine_is_on_a_replica(six: Six) -> None:
    client = RedisConfig(url=six.url(), cluster=True).create_async_redis_client()
    queue = AsyncFairQueue(client, config=SAFE)
    pushed = {user: (await queue.push(task(user), now=NOW)).task_id for user in USERS}
    assert all(is_on_the_replica(six, user, task_id) for user, task_id in pushed.items())
    assert await queue.check_invariants() == []
    await aclose_client(client)


async def test_a_push_fails_if_the_replica_is_down(six: Six) -> None:
    (replica,) = six.replicas_of(six.primary_of(compute_bucket("ann") % SHARDS))
    aclient = RedisConfig(url=six.url(replica), cluster=True).create_async_redis_client()
    with RedisConfig(url=six.url(replica), cluster=True).create_redis_client() as client:
        queue, same = FairQueue(client, config=SAFE), AsyncFairQueue(aclient, config=SAFE)
        queue.push(task("ann"), now=NOW)
        os.kill(six.nodes[replica].pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(NotReplicatedError, match="0 of 1 replicas"):
                    queue.push(task("ann", task_id="t"), now=NOW)
                with pytest.raises(NotReplicatedError, match="0 of 1 replicas"):
                    await same.push(task("ann", task_id="u"), now=NOW)
        finally:
            os.kill(six.nodes[replica].pid, signal.SIGCONT)
    await aclose_client(aclient)
