"""Much work of one user at one moment: expired tasks, due tasks, dependents of one task; and a user that is paused."""

from __future__ import annotations

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
BOUND = "at most 2 rounds of maintenance"
PUSHED_AT_ONCE = 1000


def push(world: World, tasks: Sequence[Task], now: float | None = None) -> None:
    for first in range(0, len(tasks), PUSHED_AT_ONCE):
        world.queue.push_batch(tasks[first : first + PUSHED_AT_ONCE], now=now)


def felt(world: World, task_id: str, state: str) -> Felt:
    """Run the other user's task, and look how much of the bulk was still in this state when it had ended."""
    world.start_worker("--processes", "1", "--concurrency", "2")
    world.wait_for([task_id], TaskState.FINISHED)
    return left_of(world, state)


def left_of(world: World, state: str) -> Felt:
    left = world.queue.get_stats().states[state]
    return Felt(within_bound=left >= BULK / 4, details=f"{left:,} of {BULK:,} were left when the other task ended")


@case("C2", neighbor=f"has {BULK:,} expired tasks", bound=BOUND)
def has_expired_tasks(world: World) -> Felt:
    now = world.now()
    push(world, [world.task("mallory", "noop", expires_at=now - 50) for _ in range(BULK)], now - 100)
    return felt(world, world.push("ann", "noop"), "queued")


@case("C2", neighbor=f"has {BULK:,} tasks due at one moment", bound=BOUND)
def has_due_tasks(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "2")
    due = world.now() + 4
    push(world, [world.task("mallory", "noop", execute_after=due) for _ in range(BULK)])
    other = world.push("ann", "noop", execute_after=due + 0.001)
    world.wait_for([other], TaskState.FINISHED)
    return left_of(world, "scheduled")


@case("C2", neighbor=f"finishes a task that {BULK:,} others wait for", bound=BOUND)
def has_dependents(world: World) -> Felt:
    parent = world.push("mallory", "noop")
    push(world, [world.task("mallory", "noop", depends_on=[parent]) for _ in range(BULK)])
    other_parent = world.push("ann", "noop")
    return felt(world, world.push("ann", "noop", depends_on=[other_parent]), "deferred")


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
