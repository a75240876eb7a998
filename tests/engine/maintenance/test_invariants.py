"""The checker finds each kind of damage: it can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, sweep_all, task
from tests.user_records import change_record, number_of

P = "fq:{default:0}:"


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    """One queued, one critical, one scheduled, one started, one dead task of user u."""
    queue = FairQueue(redis)
    queue.push_batch([task(task_id="started"), task(task_id="dead")], now=NOW)
    _, dead = queue.pop_batch(2, "w", now=NOW)
    queue.fail(dead, "x", retry=False, now=NOW)
    queue.push_batch(
        [task(task_id="queued"), task(priority=6, task_id="critical"), task(task_id="later", execute_after=NOW + 9)],
        now=NOW,
    )
    blocked = task(task_id="blocked", depends_on=["queued", "dead"])
    reacting = task(task_id="reacting", depends_on=["queued"], on_dependency_failure="run")
    queue.push_graph([blocked, reacting], "r", now=NOW)
    assert queue.check_invariants() == []
    return queue


DAMAGE: dict[str, Callable[[Redis], Any]] = {
    "one state": lambda redis: redis.zrem(f"{P}state:queued", "queued"),
    "one state: two": lambda redis: redis.zadd(f"{P}state:finished", {"queued": 1}),
    "one state: none": lambda redis: redis.hdel(f"{P}task:critical", "state"),
    "one state: no task": lambda redis: redis.zadd(f"{P}state:scheduled", {"nobody": 1}),
    "payload kept": lambda redis: redis.delete(f"{P}payload:later"),
    "queued once": lambda redis: redis.zrem(f"{P}queue:user:u:normal", "queued"),
    "queued once: twice": lambda redis: redis.rpush(f"{P}queue:user:u:critical", "critical"),
    "queued once: elsewhere": lambda redis: redis.zadd(f"{P}queue:user:v:normal", {"queued": 1}),
    "queued once: of another priority": lambda redis: redis.hset(f"{P}task:queued", "priority", 4),
    "queued once: in the other queue": lambda redis: (
        redis.zrem(f"{P}queue:user:u:normal", "queued"),
        redis.rpush(f"{P}queue:user:u:critical", "queued"),
    ),
    "scheduled once": lambda redis: redis.delete(f"{P}queue:user:u:scheduled"),
    "scheduled once: at another moment": lambda redis: redis.zadd(f"{P}queue:user:u:scheduled", {"later": NOW * 1e6}),
    "scheduled once: not": lambda redis: redis.zadd(f"{P}queue:user:v:scheduled", {"queued": 1}),
    "scheduled once: not looked at": lambda redis: redis.zrem(f"{P}due", "u"),
    "scheduled once: looked at late": lambda redis: redis.zadd(f"{P}due", {"u": 8e15}),
    "one lease": lambda redis: redis.srem(f"{P}leases:w", "started"),
    "one lease: not started": lambda redis: redis.sadd(f"{P}leases:x", "queued"),
    "user counts": lambda redis: change_record(redis, f"{P}user:u", run=5),
    "user counts: ready": lambda redis: change_record(
        redis, f"{P}user:u", ready_3=number_of(redis, f"{P}user:u", "ready:3") + 1
    ),
    "ring": lambda redis: redis.zrem(f"{P}ring", "u"),
    "ring: nobody": lambda redis: redis.zadd(f"{P}ring", {"nobody": 1}),
    "throttled": lambda redis: redis.zadd(f"{P}throttled", {"u": 1}),
    "users": lambda redis: redis.zrem(f"{P}users", "u"),
    "counters": lambda redis: redis.hset(f"{P}stats", "depth:3", 9),
    "dependencies": lambda redis: redis.srem(f"{P}deps:waiting:queued", "blocked"),
    "dependencies: blocked": lambda redis: redis.srem(f"{P}deps:blocked:blocked", "dead"),
    "dependencies: reacting": lambda redis: redis.sadd(f"{P}deps:reacting:dead", "nobody"),
    "dependencies: unknown": lambda redis: redis.hdel(f"{P}task:queued", "waited"),
    "deferred": lambda redis: redis.delete(f"{P}deps:blocked:reacting", f"{P}deps:waiting:queued"),
    "deferred: not": lambda redis: redis.sadd(f"{P}deps:blocked:later", "queued"),
    "orphan": lambda redis: redis.delete(f"{P}task:queued", f"{P}payload:queued"),
    "orphan: of a failure": lambda redis: (
        redis.sadd(f"{P}deps:waiting:dead", "reacting"),
        redis.sadd(f"{P}deps:reacting:dead", "reacting"),
        redis.sadd(f"{P}deps:blocked:reacting", "dead"),
        redis.hincrby(f"{P}stats", "edges", 1),
    ),
    "run: not text": lambda redis: redis.sadd(f"{P}run:".encode() + b"\xff", b"\xfe"),
    "run": lambda redis: redis.sadd(f"{P}run:r", "later"),
    "run: not": lambda redis: redis.srem(f"{P}run:r", "blocked"),
    "counters: edges": lambda redis: redis.hset(f"{P}stats", "edges", 9),
    "owner": lambda redis: redis.set(f"{P}payload:gone", "1"),
    "owner: history": lambda redis: redis.rpush(f"{P}history:gone", "1"),
    "owner: user": lambda redis: redis.zadd(f"{P}users", {"gone": 1}),
    "owner: nobody's": lambda redis: redis.set(f"{P}surprise", "1"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_the_invariant_check_finds_each_kind_of_damage(queue: FairQueue, redis: Redis, name: str) -> None:
    DAMAGE[name](redis)
    assert name.partition(":")[0] in {violation.invariant for violation in queue.check_invariants()}


FOR_A_PERSON = {"one state: none", "owner: nobody's"}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_repair_fixes_each_kind_of_damage_that_a_program_can_fix(queue: FairQueue, redis: Redis, name: str) -> None:
    DAMAGE[name](redis)
    repairs = queue.repair(now=NOW)
    sweep_all(queue)
    repairs += queue.repair(now=NOW)
    assert repairs
    if name in FOR_A_PERSON:
        assert any(not repair.is_fixed for repair in repairs)
    else:
        assert all(repair.is_fixed for repair in repairs)
        assert queue.check_invariants() == []
    assert queue.get_task("later").state.value == "scheduled"


def test_a_repair_fixes_all_kinds_of_damage_at_once(queue: FairQueue, redis: Redis) -> None:
    for name, damage in DAMAGE.items():
        if name not in FOR_A_PERSON:
            damage(redis)
    for _ in range(3):
        queue.repair(now=NOW)
        sweep_all(queue)
    assert queue.check_invariants() == []
    assert queue.repair(now=NOW) == []


def test_the_invariant_check_ignores_keys_of_other_queues(queue: FairQueue, redis: Redis) -> None:
    redis.set("fq:{other:0}:surprise", "1")
    redis.set("fq:{default:0}x", "1")
    assert queue.check_invariants() == []


def test_a_key_of_a_wrong_type_is_not_repaired(queue: FairQueue, redis: Redis) -> None:
    redis.set(f"{P}ring", "squatter")
    (repair,) = [repair for repair in queue.repair(now=NOW) if repair.violation.invariant == "type"]
    assert not repair.is_fixed
    assert str(repair).endswith(f"{P}ring: is a string, must be a zset: not written by the queue")
    redis.delete(f"{P}ring")
    assert all(repair.is_fixed for repair in queue.repair(now=NOW))
    assert queue.check_invariants() == []
