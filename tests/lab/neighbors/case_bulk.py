"""Much work of one user at one moment: expired tasks, due tasks, dependents of one task; and a user that is paused."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState

from .cases import Felt, case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.model.task import Task

    from .world import World

BULK = 10_000
"""Tasks of the neighbor: a hundred rounds of maintenance."""
LONGEST_WAIT = 1.0
BOUND = f"at most 2 rounds of maintenance; a wait of {LONGEST_WAIT:g} s"
PUSHED_AT_ONCE = 1000


def push(world: World, tasks: Sequence[Task], now: float | None = None) -> None:
    for first in range(0, len(tasks), PUSHED_AT_ONCE):
        world.queue.push_batch(tasks[first : first + PUSHED_AT_ONCE], now=now)


def start_worker(world: World) -> None:
    world.start_worker("--processes", "1", "--concurrency", "2")


def felt(world: World, task_id: str, state: str, since: float) -> Felt:
    """Wait for the end of the other user's task. Report how long it waited, and how much of the bulk is still in this state."""
    world.wait_for([task_id], TaskState.FINISHED)
    left = world.queue.get_stats().states[state]
    started_at = world.queue.get_task(task_id).started_at or math.inf
    wait = max(0.0, started_at - since)
    return Felt(
        p99_wait=wait,
        within_bound=left >= BULK / 4 and wait <= LONGEST_WAIT,
        details=f"{left:,} of {BULK:,} were left when the other task ended",
    )


@case("C2", neighbor=f"has {BULK:,} expired tasks", bound=BOUND)
def has_expired_tasks(world: World) -> Felt:
    world.queue.pause()
    start_worker(world)
    expires_at = world.now() + 5
    push(world, [world.task("mallory", "noop", expires_at=expires_at) for _ in range(BULK)])
    other = world.push("ann", "noop")
    time.sleep(max(0.0, expires_at - world.now()))
    world.queue.resume()
    return felt(world, other, "queued", world.now())


@case("C2", neighbor=f"has {BULK:,} tasks due at one moment", bound=BOUND)
def has_due_tasks(world: World) -> Felt:
    start_worker(world)
    due = world.now() + 4
    push(world, [world.task("mallory", "noop", execute_after=due) for _ in range(BULK)])
    other = world.push("ann", "noop", execute_after=due + 0.001)
    return felt(world, other, "scheduled", due)


@case("C2", neighbor=f"finishes a task that {BULK:,} others wait for", bound=BOUND)
def has_dependents(world: World) -> Felt:
    parent = world.push("mallory", "noop")
    other_parent = world.push("ann", "noop")
    return dependents(world, parent, other_parent)


@case("C2", neighbor=f"has {BULK:,} tasks that wait for the same task as one of another user", bound=BOUND)
def waits_for_the_same_task(world: World) -> Felt:
    parent = world.push("ann", "noop")
    return dependents(world, parent, parent)


def dependents(world: World, parent: str, other_parent: str) -> Felt:
    world.queue.pause()
    push(world, [world.task("mallory", "noop", depends_on=[parent]) for _ in range(BULK)])
    other = world.push("ann", "noop", depends_on=[other_parent])
    start_worker(world)
    world.queue.resume()
    return felt(world, other, "deferred", world.now())


@case("C6", neighbor="is paused, and its tasks wait longer than any other", bound="unaffected")
def is_paused(world: World) -> Felt:
    ago = 1000.0
    push(world, [world.task("mallory", "noop") for _ in range(300)], world.now() - ago)
    world.queue.user("mallory").pause()
    began = time.time()
    others = world.push_many("ann", "nap", 3, 1.0)
    world.start_worker("--processes", "1", "--concurrency", "1")
    world.wait_for(others[:1], TaskState.FINISHED)
    stats = world.queue.get_stats()
    world.wait_for(others, TaskState.FINISHED)
    oldest, held_back = stats.oldest_wait_seconds, stats.held_back_wait_seconds
    is_right = oldest <= time.time() - began + 1 and held_back >= ago - 1
    return Felt(within_bound=is_right, details=f"oldest wait {oldest:.0f} s, held back {held_back:.0f} s")
