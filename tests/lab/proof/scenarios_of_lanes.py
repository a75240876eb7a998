"""Scenarios of lanes: urgent and bulk tasks that are pushed, fetched, requeued and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.lanes import LaneLimits
from tests.lab.proof.random_history import LEASE
from tests.lab.proof.scenarios_of_damage import damaged

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.lab.proof.scenario import Act, Scene


def push_all_lanes(scene: Scene) -> None:
    """``a`` in an organization, and ``b`` in none, with a task in each lane."""
    scene.queue.user("a").set_organization("g", now=scene.now)
    for user in "ab":
        for lane in ("urgent", "normal", "bulk"):
            scene.push(f"{user}-{lane}", user=user, lane=lane)


def a_fetch_of_all_lanes(scene: Scene) -> Act:
    push_all_lanes(scene)
    return lambda queue: queue.pop_batch(10, "w", lease=LEASE, now=scene.now)


def a_fetch_of_a_worker_with_reserved_slots(scene: Scene) -> Act:
    push_all_lanes(scene)
    scene.queue.settle([], 1, worker="w", lane_limits=LaneLimits(1, 0), lease=LEASE, now=scene.now)

    def act(queue: FairQueue) -> None:
        queue.push(scene.task("c-urgent", "c", lane="urgent"), now=scene.now)
        queue.settle([], 3, worker="w", lane_limits=LaneLimits(1, 0), lease=LEASE, woken=True, now=scene.now)

    return act


def a_dead_letter_of_lane_bulk_that_is_requeued_as_urgent(scene: Scene) -> Act:
    scene.push("dead", lane="bulk", max_retries=0)
    scene.end("dead", how="failed")
    return lambda queue: queue.dlq.requeue("dead~1", lane="urgent", now=scene.now)


def lanes_that_are_repaired(scene: Scene) -> Act:
    push_all_lanes(scene)
    return damaged(
        scene,
        ("DEL", "urgent"),
        ("DEL", "bulk"),
        ("DEL", "urgent:g"),
        ("ZADD", "bulk:g", 1, "stranger"),
        ("ZADD", "bulk", 1, "nobody"),
        ("ZADD", "urgent", 1, "nobody"),
    )


def a_worker_that_wakes_another_for_lanes(scene: Scene) -> Act:
    """The first fetch leaves urgent tasks, and the second one bulk tasks alone."""
    scene.push("urgent1", "urgent2", lane="urgent")
    scene.push("bulk", user="b", lane="bulk")

    def act(queue: FairQueue) -> None:
        for _ in range(2):
            queue.settle([], 1, worker="w", lease=LEASE, woken=True, now=scene.now)

    return act
