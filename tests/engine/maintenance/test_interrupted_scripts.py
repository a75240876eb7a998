"""Scripts that ended in the middle may leave wrong entries. These do no harm until somebody repairs the queue."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many, task

P = "fq:{default:0}:"
HOUR = 3600.0


@pytest.mark.parametrize("registry", ["finished", "failed", "canceled"])
def test_an_interrupted_script_loses_no_live_task(queue: FairQueue, redis: Redis, registry: str) -> None:
    """The task was requeued, or its id was pushed again, and the id is still in the registry of ended tasks."""
    (task_id,) = push_many(queue, "ann", 1)
    redis.zadd(f"{P}state:{registry}", {task_id: 1})
    queue.sweep(now=NOW)
    assert pop(queue).task_id == task_id


def test_an_end_that_other_shards_did_not_receive_is_found_and_sent_again(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=2))
    here, there = (next(name for name in map(str, range(99)) if compute_bucket(name) % 2 == shard) for shard in (0, 1))
    queue.push_graph([task(here, task_id="f"), task(there, task_id="w", depends_on=["f"])], now=NOW)
    for _ in range(3):
        queue.carry_messages(now=NOW)
    queue.finish(pop(queue), now=NOW)
    redis.hdel(f"{P}outbox", "tell:1:f")
    redis.sadd(f"{P}deps:remote:f", "1")
    (violation,) = queue.check_invariants()
    assert (violation.invariant, violation.key) == ("mirrors", f"{P}deps:remote:f")
    assert [repair.is_fixed for repair in queue.repair(now=NOW)] == [True]
    queue.sweep(now=NOW)
    queue.carry_messages(now=NOW)
    assert queue.pop("w", now=NOW) is not None
    assert not redis.exists(f"{P}deps:remote:f")
    assert queue.check_invariants() == []


def test_a_lease_is_spared_once_even_if_the_call_was_interrupted(queue: FairQueue, redis: Redis) -> None:
    before = time.time() - HOUR
    queue.push(task(), now=before)
    queue.pop("w", lease=30, now=before)
    queue.sweep()
    redis.hset(f"{P}stats", mapping={"revision": "", "clock": int(before * 1e6)})  # the scripts write this record last
    (spared,) = redis.zrange(f"{P}state:started", 0, -1, withscores=True)
    queue.take_alerts()
    assert redis.zrange(f"{P}state:started", 0, -1, withscores=True) == [spared]
