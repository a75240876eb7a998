"""Two versions of the package, whose commands differ, work on one queue at once, as docs/guides/upgrading.md promises."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually, recorded

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

    from .conftest import Version

AMOUNT, NAP = 150, 0.05
"""Tasks at once, and seconds that each takes: a worker is about a second behind when it is stopped."""


def libraries(redis: Redis) -> int:
    """Count the versions of the function library on the server."""
    found: Any = redis.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "fairque_*")
    return len(found)


def is_of_newer(redis: Redis, task_id: str) -> bool:
    return bool(redis.hexists(f"fq:{{default:0}}:task:{task_id}", "newer"))


@pytest.mark.slow
def test_a_rollout_and_its_rollback_under_load_lose_no_task(
    queue: FairQueue, redis: Redis, older: Version, newer: Version
) -> None:
    for library in redis.execute_command("FUNCTION", "LIST"):
        redis.execute_command("FUNCTION", "DELETE", library[1])
    ids: list[str] = []
    workers = [older.worker().wait_ready()]
    for version in (newer, older):  # the step forward, and the step back
        ids += older.push("nap", NAP, amount=AMOUNT)
        workers.append(version.worker().wait_ready())
        ids += newer.push("nap", NAP, amount=AMOUNT)
        ids += older.push("later", amount=3)
        assert workers.pop(0).stop() == 0
        ids += newer.push("nap", NAP, amount=AMOUNT)

    def left() -> int:
        stats = queue.get_stats(minutes=0)
        return len(ids) - stats.states["finished"]

    eventually(lambda: left() == 0, 60)
    assert {queue.get_task(task_id).state for task_id in ids} == {TaskState.FINISHED}
    ended = Counter(task_id for task_id, _ in recorded(redis, "tests:ended"))
    assert set(ended.values()) == {1}
    assert len(ended) == 6 * AMOUNT
    assert libraries(redis) == 2
    assert {is_of_newer(redis, task_id) for task_id in ids} == {True, False}
    assert queue.dlq.list().items == []
    assert queue.check_invariants() == []


@pytest.mark.thorough
def test_a_task_unknown_to_older_workers_waits_for_a_newer(queue: FairQueue, older: Version, newer: Version) -> None:
    before = older.worker().wait_ready()
    (task_id,) = newer.push("brand_new")
    eventually(lambda: queue.history(task_id))
    task = eventually(lambda: (now := queue.get_task(task_id)).state is TaskState.SCHEDULED and now)
    assert task.retry_count == 0
    assert "no task named 'brand_new'" in queue.history(task_id)[0].error
    newer.worker().wait_ready()
    assert before.stop() == 0
    assert queue.run_now(task_id) == 1  # the retry would wait for half a minute
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    assert queue.get_task(task_id).result == "done"
    assert queue.dlq.list().items == []
