"""Pushes of more than one call: in which order tasks are sent, and what of it can be seen."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import BacklogFullError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing.push import TASKS_SORTED_BY_USER
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, task


@pytest.fixture
def small(make_queue: MakeQueue) -> FairQueue:
    return make_queue(pipeline_batch_size=10)


def ring(redis: Redis) -> list[str]:
    names: Any = redis.zrange("fq:{default:0}:ring", 0, -1)
    return [name.decode() for name in names]


def contents(redis: Redis) -> dict[bytes, Any]:
    """Every key but the replies that are kept for repeated calls, their size, and how often the counters were written:
    they are each call's own."""
    read: dict[Any, Callable[[bytes], Any]] = {
        b"string": redis.get,
        b"hash": redis.hgetall,
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
    }
    keys: Any = redis.scan_iter()
    found = {
        key: read[redis.type(key)](key) for key in keys if not key.endswith(b":signing_keys") and b":reply:" not in key
    }
    for field in (b"replies", b"revision"):
        found[b"fq:{default:0}:stats"].pop(field, None)
    return found


def started(queue: FairQueue) -> list[str]:
    return [lease.task_id for lease in queue.pop_batch(1000, "w", now=NOW)]


@pytest.mark.parametrize("priority", [3, 6])
def test_a_users_tasks_keep_their_order_and_answers_are_in_that_of_the_tasks(small: FairQueue, priority: int) -> None:
    dice = random.Random(priority)
    tasks = [task(f"u{dice.choice([0, 0, 0, 0, 1, 1, 2, 3])}", priority) for _ in range(300)]
    assert [result.task_id for result in small.push_batch(tasks, now=NOW)] == [task.task_id for task in tasks]
    order = started(small)
    for user in {pushed.user_id for pushed in tasks}:
        ids = [task.task_id for task in tasks if task.user_id == user]
        assert [task_id for task_id in order if task_id in set(ids)] == ids


def test_users_with_few_tasks_in_a_push_enter_the_ring_first(redis: Redis, small: FairQueue) -> None:
    """The order in which they join the ring: nobody was served yet."""
    tasks: list[Task] = [task("much") for _ in range(50)] + [task("one"), task("two"), task("two")]
    small.push_batch(tasks, now=NOW)
    assert ring(redis) == ["one", "two", "much"]


def test_users_of_a_bulk_push_join_the_ring_in_their_order(redis: Redis, queue: FairQueue) -> None:
    queue.push_batch([*(task("much") for _ in range(50)), task("one")], now=NOW)
    assert ring(redis) == ["much", "one"]


def test_users_of_a_large_bulk_push_wait_for_at_most_one_slice(queue: FairQueue) -> None:
    """Tasks of the first slice are in the queue before any task of the second."""
    tasks = [task("early") for _ in range(TASKS_SORTED_BY_USER)] + [task("late") for _ in range(300)]
    queue.push_batch(tasks, now=NOW)
    ready = [
        queue.get_task(tasks[at].task_id).ready_at or 0.0 for at in (TASKS_SORTED_BY_USER - 1, TASKS_SORTED_BY_USER)
    ]
    assert ready[0] < ready[1]


KINDS: list[dict[str, Any]] = [
    *[{}] * 6,
    {"name": "report", "timeout": 5},
    {"priority": 1},
    {"priority": 6},
    {"execute_after": NOW + 60},
    {"execute_after": NOW - 60},
    {"expires_at": NOW + 5},
    {"sla": 20},
    {"traceparent": f"00-{1:032x}-{2:016x}-01"},
    {"unique_key": "same", "unique_for": 60},
    {"unique_key": "late", "debounce": 60},
]


@pytest.mark.parametrize("seed", range(5))
def test_a_bulk_push_writes_the_same_as_a_push_of_each_task(redis: Redis, make_queue: MakeQueue, seed: int) -> None:
    """Tasks that are alike are written together, which has no effect on the result."""
    dice = random.Random(seed)
    some = [(f"u{dice.choice([0, 0, 0, 1, 2])}", dice.choice(KINDS)) for _ in range(dice.choice([20, 300]))]
    tasks = [task("u0", task_id="new"), task("u0", task_id="ended"), task("u1"), task("u2")]
    tasks += [task(user, **kind) for user, kind in some for _ in range(dice.choice([1, 1, 4]))]
    queue, found = make_queue(pipeline_batch_size=1000), []
    for parts in ([tasks], [[pushed] for pushed in tasks]):
        redis.flushdb()
        queue.user("u2").set_sla(7, now=NOW - 3)
        queue.push(task("u0", task_id="ended"), now=NOW - 2)
        queue.finish(queue.pop_batch(1, "w", now=NOW - 1)[0], now=NOW - 1)
        for part in parts:
            queue.push_batch(part, now=NOW)
        found.append(contents(redis))
    assert found[0] == found[1]


@pytest.mark.parametrize("same", [{"task_id": "same"}, {"unique_key": "same", "unique_for": 60}])
def test_the_first_of_two_equal_unique_tasks_counts(small: FairQueue, same: dict[str, Any]) -> None:
    many = [task("much") for _ in range(30)]
    tasks = [*many, task("much", payload=1, **same), task("one"), task("much", payload=2, **same)]
    results = small.push_batch(tasks, now=NOW)
    assert [result.status for result in results[-3:]] == ["accepted", "accepted", "duplicate"]
    assert small.get_task(results[-1].task_id).payload == 1


def test_the_last_payload_of_a_debounced_task_counts(small: FairQueue) -> None:
    tasks = [task("u", payload=i, unique_key="same", debounce=5) for i in range(40)]
    first = small.push_batch(tasks, now=NOW)[0]
    assert small.get_task(first.task_id).payload == 39


def test_a_full_backlog_refuses_the_last_of_the_users_tasks(make_queue: MakeQueue) -> None:
    queue = make_queue(pipeline_batch_size=10, max_backlog=5)
    tasks = [task(f"u{i % 4}") for i in range(40)]
    with pytest.raises(BacklogFullError) as full:
        queue.push_batch(tasks, now=NOW)
    assert full.value.refused == tuple(task.task_id for task in tasks[20:])
    assert [getattr(result, "status", None) for result in full.value.results] == ["accepted"] * 20 + [
        "backlog_full"
    ] * 20


def test_a_bulk_push_over_several_shards_returns_the_ids_in_order(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=3, pipeline_batch_size=5))
    tasks = [task(f"u{i % 20}") for i in range(200)]
    assert [result.task_id for result in queue.push_batch(tasks, now=NOW)] == [task.task_id for task in tasks]
    assert queue.check_invariants() == []
