"""A queued task whose payload key something else has written becomes a dead letter that names the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task

DAMAGE: dict[str, Callable[[Redis, str], Any]] = {
    "other bytes": lambda redis, key: redis.set(key, b"garbage"),
    "nothing": lambda redis, key: redis.set(key, b""),
    "another type": lambda redis, key: (redis.delete(key), redis.rpush(key, b"x")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_task_with_an_overwritten_payload_becomes_a_dead_letter(queue: FairQueue, redis: Redis, kind: str) -> None:
    damaged, sound = (queue.push(task("u"), now=NOW).task_id for _ in range(2))
    DAMAGE[kind](redis, f"fq:{{default:0}}:payload:{damaged}")
    assert [lease.task_id for lease in queue.pop_batch(9, "w", now=NOW + 1)] == [sound]
    (letter,) = queue.dlq.list().items
    assert (letter.entry_id, letter.original_task.user_id) == (f"{damaged}~1", "u")
    assert letter.failure_type is FailureType.POISONED
    assert "its payload was overwritten or removed on the server" in letter.reason
    assert queue.get_stats().states[TaskState.QUEUED] == 0
    assert [alert.task_id for alert in queue.take_alerts(9, now=NOW + 1)] == [damaged]
    redis.delete(f"fq:{{default:0}}:payload:{damaged}")
    redis.set(f"fq:{{default:0}}:payload:{damaged}", b"")


def test_a_started_task_whose_payload_is_gone_becomes_a_dead_letter(queue: FairQueue, redis: Redis) -> None:
    damaged = queue.push(task("u"), now=NOW).task_id
    queue.release(pop(queue), now=NOW)
    redis.delete(f"fq:{{default:0}}:payload:{damaged}")
    assert queue.pop("w", now=NOW) is None
    (letter,) = queue.dlq.list().items
    assert letter.entry_id == f"{damaged}~1"
    redis.set(f"fq:{{default:0}}:payload:{damaged}", b"")
