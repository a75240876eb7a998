"""Scenarios of damage: data that was damaged and is fixed, and a server's clock that is set."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.outcome import Outcome
from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenario import P
from tests.user_records import change_record

if TYPE_CHECKING:
    from tests.lab.proof.scenario import Act, Scene


def damaged(scene: Scene, *commands: tuple[Any, ...]) -> Act:
    for name, key, *rest in commands:
        if key.startswith("user:"):
            change_record(scene.redis, P + key, **{rest[0]: rest[1]})
        else:
            scene.redis.execute_command(name, P + key, *rest)
    return lambda queue: queue.repair(now=scene.now)


def queues_that_are_mended(scene: Scene) -> Act:
    scene.push("lost", "moved", "payload", "ended")
    scene.push("gone", "double", "both", priority=6)
    return damaged(
        scene,
        *(("ZREM", "queue:user:a:normal", name) for name in ("lost", "payload")),
        ("ZADD", "queue:user:a:normal", 1e15, "moved"),
        ("LREM", "queue:user:a:critical", 0, "gone"),
        ("RPUSH", "queue:user:a:critical", "double"),
        ("ZADD", "queue:user:a:normal", 3e15, "both"),
        ("ZADD", "queue:user:z:normal", 1, "nobody"),
        ("RPUSH", "queue:user:z:critical", "nobody"),
        ("DEL", "payload:payload"),
        ("SET", "payload:nobody", "1"),
        ("SET", "user:a", "ready_3", 9),
        ("HINCRBY", "stats", "depth:3", 2),
    )


def registries_that_are_mended(scene: Scene) -> Act:
    scene.push("queued", "twice", "run")
    scene.push("later", execute_after=scene.now + 9)
    scene.push("started", priority=6)
    scene.pop()
    scene.push("held", user="b")
    return damaged(
        scene,
        ("ZREM", "state:queued", "queued"),
        ("ZADD", "state:finished", 1, "twice"),
        ("ZREM", "state:started", "started"),
        ("SREM", "leases:w1", "started"),
        ("SADD", "leases:w2", "nobody", "run"),
        ("ZADD", "state:queued", 1, "nobody"),
        ("SADD", "run:r1", "nobody"),
    )


def a_record_without_its_payload_that_is_removed(scene: Scene) -> Act:
    """The head is gone with the payload, so nobody knows whose task it was."""
    scene.push("ended", "other")
    (lease,) = scene.pop()
    scene.queue.settle([Outcome.finish(lease)], now=scene.now)
    scene.order.clear()
    return damaged(scene, ("DEL", f"payload:{lease.task_id}"))


def users_that_are_mended(scene: Scene) -> Act:
    scene.queue.user("b").set_rate("1/60s", now=scene.now)
    scene.push("one", "two", user="b")
    scene.pop()
    scene.push("three")
    scene.queue.user("c:normal").pause(now=scene.now)
    scene.push("four", user="c:normal")
    return damaged(
        scene,
        ("ZREM", "throttled", "b"),
        ("ZREM", "ring", "a"),
        ("ZREM", "users", "a"),
        ("ZADD", "ring", 1, "c:normal", 1, "nobody"),
        ("ZADD", "users", 1, "stranger"),
        ("ZADD", "throttled", 1, "a"),
    )


def a_newcomer_at_the_place_of_others(scene: Scene) -> Act:
    scene.push("one", "two")
    (lease,) = scene.pop()
    scene.queue.finish(lease, took=1, now=scene.now)
    (lease,) = scene.pop()
    scene.queue.finish(lease, took=1, now=scene.now)
    scene.push("three", user="b")
    assert (scene.redis.zscore(f"{P}ring", "b") or 0) < 0
    return damaged(scene, ("ZADD", "ring", 1, "b"))


def payloads_that_were_overwritten(scene: Scene) -> Act:
    scene.push("overwritten", "removed", "sound")
    for name, key, *rest in (("SET", "payload:overwritten", "x"), ("DEL", "payload:removed")):
        scene.redis.execute_command(name, P + key, *rest)
    return lambda queue: queue.pop_batch(3, "w1", lease=LEASE, now=scene.now)


def edges_that_are_mended(scene: Scene) -> Act:
    scene.graph(
        *(scene.task("f"), scene.task("g"), scene.task("half", "b", depends_on=["f"], on_dependency_failure="cancel")),
        *(scene.task("free", "b", depends_on=["g"]), scene.task("told", "b", depends_on=["g"])),
        run="r1",
    )
    scene.order.clear()
    return damaged(
        scene,
        ("SREM", "deps:waiting:f", "half"),
        ("SREM", "deps:reacting:f", "half"),
        ("DEL", "deps:blocked:free"),
        ("SREM", "deps:waiting:g", "free"),
        ("SADD", "deps:blocked:f", "g"),
        ("SREM", "run:r1", "g"),
        ("HDEL", "task:g", "waited"),
    )


def a_clock_set_forward(scene: Scene) -> Act:
    """The last calls before this one are an hour old."""
    scene.now = time.time() - 3600
    scene.push("one", "two")
    scene.pop()
    scene.now = time.time() + 1
    return lambda queue: queue.sweep()


def a_clock_set_back(scene: Scene) -> Act:
    """All moments until now came from the server's clock, which was ahead."""
    scene.now = time.time() + 100
    scene.push("retried", "running")
    scene.queue.user("b").set_rate("1/60s", now=scene.now)
    scene.push("served", "held", user="b")
    leases = {lease.task_id: lease for lease in scene.pop(4)}
    scene.queue.settle([Outcome.fail(leases["retried"], "x", delay=5)], now=scene.now)
    scene.queue.heartbeat("w1", {}, lease=LEASE, now=scene.now)
    scene.redis.hset(f"{P}stats", mapping={"revision": "", "given": 0})
    scene.now = time.time() + 1
    return lambda queue: queue.sweep()


def a_scheduled_task_that_is_mended(scene: Scene) -> Act:
    scene.push("later", execute_after=scene.now + 9)
    return damaged(scene, ("DEL", "queue:user:a:scheduled"), ("DEL", "due"))
