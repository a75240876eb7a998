"""Damaged keys and records of one user: other users' tasks are pushed, started, settled and listed as ever."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, everything, task
from tests.user_records import change_record

P = "fq:{default:0}:"
VALUES = {
    "string": lambda redis, key: redis.set(key, "x"),
    "list": lambda redis, key: redis.rpush(key, "x"),
    "set": lambda redis, key: redis.sadd(key, "x"),
    "hash": lambda redis, key: redis.hset(key, "x", "y"),
    "zset": lambda redis, key: redis.zadd(key, {"x": 1}),
}
KEYS = {
    "user:a": "string",
    "group:g": "hash",
    "ring:g": "zset",
    "queue:user:a:normal": "zset",
    "queue:user:a:critical": "list",
    "queue:user:a:scheduled": "zset",
    "task:queued": "hash",
    "task:fresh": "hash",
    "task:critical": "hash",
    "task:later": "hash",
    "task:running": "hash",
    "task:held": "hash",
    "task:done": "hash",
    "task:blocked": "hash",
    "task:expired": "hash",
    "history:queued": "list",
    "history:running": "list",
    "history:expired": "list",
    "payload:queued": "string",
    "payload:fresh": "string",
    "deps:waiting:running": "set",
    "deps:waiting:held": "set",
    "deps:blocked:blocked": "set",
    "deps:reacting:held": "set",
    "run:r": "set",
}
"""Keys of user a, each with the type that it should have."""
WRONG_TYPES = [(name, kind) for name, own in KEYS.items() for kind in VALUES if kind != own]
FIELDS = {
    "user:a": ["ready:3", "sched", "run", "tag", "weight", "cap", "gap", "since", "expected", "start", "hour", "busy"],
    "task:queued": ["ready", "created", "priority", "state", "user", "expires", "retries", "deliveries", "sla"],
    "task:fresh": ["ready", "created", "priority", "state", "user", "token", "warn"],
    "task:later": ["due", "ready", "created", "expires", "state"],
    "task:running": ["started", "cost", "ready", "token", "worker", "waited"],
    "task:done": ["ended", "result", "died"],
    "group:g": ["tag", "vtime", "ready", "run", "weight"],
}
TEXTS = ["", "x", "nan", "inf", "-1", "1e400", "9" * 30, "253402300799000000", "\0"]


def is_number(text: str) -> bool:
    with suppress(ValueError):
        return bool(float(text) or True)
    return False


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    """Something of user a in each state, and of its organization."""
    queue = FairQueue(redis, config=QueueConfig(retry_jitter=0, sweep_batch_size=10))
    queue.user("a").set_organization("g", now=NOW)
    queue.push_batch([task("a", task_id=name) for name in ("done", "running", "held")], now=NOW)
    done, *_ = queue.pop_batch(3, "w", lease=60, now=NOW)
    queue.finish(done, now=NOW)
    queue.push_batch(
        [
            task("a", task_id="fresh"),
            task("a", task_id="queued", expires_at=NOW + 900),
            task("a", 6, task_id="critical"),
            task("a", task_id="later", execute_after=NOW + 1),
            task("a", task_id="expired", expires_at=NOW + 1),
        ],
        now=NOW,
    )
    blocked = task("a", task_id="blocked", depends_on=["running", "held"], on_dependency_failure="cancel")
    queue.push_graph([blocked], "r", now=NOW)
    return queue


def others_are_unaffected(queue: FairQueue, now: float) -> None:
    """Push, start, fail, schedule, settle and list tasks of user b."""
    queue.push_batch([task("b", task_id="b1"), task("b", task_id="b2", execute_after=now + 1, max_retries=2)], now=now)
    queue.push_graph([task("b", task_id="b3", depends_on=["b1"])], "of b", now=now)
    started: list[str] = []
    for number in range(40):
        now += 1
        leases = queue.pop_batch(3, f"w{number}", lease=600, now=now)
        for lease in leases:
            if lease.user_id == "b":
                started.append(lease.task_id)
                is_first = lease.task_id == "b2" and started.count("b2") == 1
                outcome = Outcome.fail(lease, "x", delay=1) if is_first else Outcome.finish(lease)
                queue.settle([outcome], worker=f"w{number}", now=now)
        queue.sweep(now=now)
        if len(started) == 4:
            break
    assert sorted(started) == ["b1", "b2", "b2", "b3"]
    pages(queue)


def pages(queue: FairQueue) -> None:
    """Every listing shows the tasks and users that are sound."""
    for state in TaskState:
        queue.tasks(state, limit=100)
    assert {"b1", "b2", "b3"} <= {task.task_id for task in queue.tasks("finished", limit=100)}
    assert {"b1", "b2", "b3"} <= {task.task_id for task in queue.find(Search(TaskState.FINISHED), 50).tasks}
    assert set(queue.get_tasks(["b1", "queued", "later", "running", "done"])) >= {"b1"}
    assert "b" in list(queue.users(limit=100))
    assert [user.user_id for user in queue.user_stats(["a", "b"])] == ["a", "b"]
    assert set(queue.get_queue_sizes_batch(["a", "b"])) == {"a", "b"}
    queue.get_stats()
    queue.longest_waits()
    queue.health()
    list(queue.dlq.list(limit=50))
    for organization in queue.organizations():
        queue.organization(organization).stats()
    queue.check_invariants()


@pytest.mark.parametrize(("name", "kind"), WRONG_TYPES)
def test_a_key_of_a_wrong_type_stops_no_other_user(queue: FairQueue, redis: Redis, name: str, kind: str) -> None:
    redis.delete(P + name)
    VALUES[kind](redis, P + name)
    others_are_unaffected(queue, NOW + 2)
    if redis.type(P + name) == kind.encode() and name != "payload:queued":
        assert P + name in {violation.key for violation in queue.check_invariants()}


@pytest.mark.parametrize(("name", "kind"), WRONG_TYPES)
def test_a_failed_push_leaves_no_keys(queue: FairQueue, redis: Redis, name: str, kind: str) -> None:
    redis.delete(P + name)
    VALUES[kind](redis, P + name)
    new = [
        [task("a", task_id="new")],
        [task("a", 6, task_id="new")],
        [task("a", task_id="new", execute_after=NOW + 500)],
        [task("a", task_id="new", depends_on=["running", "held"])],
        [task("a", task_id="queued"), task("b", task_id="new")],
        [task("a", task_id="done")],
    ]
    for tasks in new:
        before = everything(redis)
        try:
            queue.push_graph(tasks, "r", now=NOW + 3)
        except FairQueueError:
            assert everything(redis) == before
        else:
            with suppress(FairQueueError):
                queue.cancel("new", now=NOW + 3)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_a_damaged_field_of_a_record_stops_no_other_user(queue: FairQueue, redis: Redis, name: str, field: str) -> None:
    """All that can be wrong in turn; the calls of other users go on."""
    saved: dict[bytes, Any] = {key: redis.dump(key) for key in redis.scan_iter()}
    for text in TEXTS:
        redis.flushdb()
        for key, value in saved.items():
            redis.restore(key, 0, value)
        if name == "user:a":
            change_record(redis, P + name, **{field.replace(":", "_"): text if is_number(text) else "nan"})
        else:
            redis.hset(P + name, field, text)
        others_are_unaffected(queue, NOW + 2)
