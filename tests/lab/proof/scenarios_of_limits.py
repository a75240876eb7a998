"""Scenarios of limits by key: tasks that wait for a place, are admitted, replaced and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.outcome import Outcome
from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenarios_of_damage import damaged

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.lab.proof.scenario import Act, Scene

SHARED = TaskLimit("k", 1)
OWN = TaskLimit("own", 1, is_of_user=True)
RATE = TaskLimit("api", None, 1_000_000)


def push_both(scene: Scene) -> None:
    """``a`` and ``b`` with two tasks of a shared limit, and ``c`` with three of a separate limit."""
    for user in "ab":
        scene.push(f"{user}1", f"{user}2", user=user, limits=[SHARED])
    scene.push("c1", "c2", "c3", user="c", limits=[OWN])


def a_push_at_limits(scene: Scene) -> Act:
    push_both(scene)
    tasks = [
        scene.task("d", "a", limits=[SHARED]),
        scene.task("e", "c", limits=[OWN]),
        scene.task("f", "c", limits=[RATE]),
    ]
    return lambda queue: queue.push_batch(tasks, now=scene.now)


def a_fetch_at_limits(scene: Scene) -> Act:
    push_both(scene)
    scene.push("both", user="c", limits=[SHARED, OWN])
    scene.push("api1", "api2", user="d", limits=[RATE])
    return lambda queue: queue.pop_batch(10, "w", lease=LEASE, now=scene.now)


def ends_of_tasks_with_limits(scene: Scene) -> Act:
    push_both(scene)
    leases = scene.queue.pop_batch(10, "w", lease=LEASE, now=scene.now)
    outcomes = [Outcome.finish(lease, took=1.0) for lease in leases]
    return lambda queue: queue.settle(outcomes, 10, worker="w", lease=LEASE, now=scene.now)


def a_task_with_limits_that_is_given_back(scene: Scene) -> Act:
    push_both(scene)
    scene.push("api1", "api2", user="d", limits=[RATE])
    leases = scene.queue.pop_batch(10, "w", lease=LEASE, now=scene.now)
    return lambda queue: queue.settle([Outcome.release(lease) for lease in leases], now=scene.now)


def a_canceled_task_with_limits(scene: Scene) -> Act:
    push_both(scene)
    return lambda queue: queue.cancel_many(["a1", "a2", "c1"], now=scene.now)


def paused_users_at_a_limit(scene: Scene) -> Act:
    push_both(scene)
    scene.queue.user("a").pause(now=scene.now)
    scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)

    def act(queue: FairQueue) -> None:
        queue.pop_batch(5, "w", lease=LEASE, now=scene.now)
        queue.user("a").resume(now=scene.now)
        queue.cancel_many(["b1", "b2"], now=scene.now)
        queue.pop_batch(5, "w", lease=LEASE, now=scene.now)

    return act


def a_rate_whose_record_expires_and_is_used_again(scene: Scene) -> Act:
    scene.push("api1", user="d", limits=[RATE])
    (lease,) = scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)

    def act(queue: FairQueue) -> None:
        queue.settle([Outcome.finish(lease)], now=scene.now)
        queue.push(scene.task("api2", "d", limits=[RATE]), now=scene.now)

    return act


def a_task_that_replaces_a_waiting_one(scene: Scene) -> Act:
    newest = TaskLimit("n", 1, at_limit="newest")
    scene.push("n1", user="a", limits=[newest])
    scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)
    scene.push("n2", user="b", limits=[newest])
    task = scene.task("n3", "a", limits=[newest])
    return lambda queue: queue.push(task, now=scene.now)


def limits_that_are_repaired(scene: Scene) -> Act:
    push_both(scene)
    scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)
    return damaged(
        scene,
        ("DEL", "limit:s:k"),
        ("DEL", "limit:u:1:c:own"),
        ("DEL", "limit_queue:1:a:s:k"),
        ("DEL", "limit_users:normal:s:k"),
        ("ZADD", "limit_queue:1:c:u:1:c:own", 1, "stranger"),
        ("ZADD", "limited:normal", 1, "s:none"),
        ("DEL", "limits"),
    )


def a_limit_that_nobody_uses_any_more(scene: Scene) -> Act:
    scene.push("only", user="a", limits=[SHARED])
    (lease,) = scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)
    return lambda queue: queue.settle([Outcome.finish(lease, took=0.5)], now=scene.now)


def the_last_waiting_task_of_a_limit_that_is_canceled(scene: Scene) -> Act:
    scene.push("first", user="a", limits=[SHARED])
    scene.queue.pop_batch(1, "w", lease=LEASE, now=scene.now)
    scene.push("second", user="a", limits=[SHARED])
    return lambda queue: queue.cancel("second", now=scene.now)


def a_sweep_while_tasks_wait_at_limits(scene: Scene) -> Act:
    push_both(scene)
    return lambda queue: queue.sweep(now=scene.now)
