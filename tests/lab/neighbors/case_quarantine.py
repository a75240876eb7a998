"""Tasks that end their process, or block it beyond their hard limit, next to innocent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.records import FailureType, TaskState
from tests.worker.conftest import eventually

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from .world import World


@case("B2", neighbor="kills its process until it is poisoned", bound="2 extra starts; only the killer is poisoned")
def kills_its_process_again_and_again(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "4", FAIRQUE_QUEUE__MAX_DELIVERIES="4")
    innocents = [world.push(user, "nap", 1.5) for user in ("ann", "bob", "cy")]
    eventually(lambda: len(world.starts()) == len(innocents))
    killer = world.push("mallory", "dies", max_retries=0)
    world.wait_for(innocents, TaskState.FINISHED, 40)
    world.wait_for([killer], TaskState.FAILED, 40)
    extra = world.extra_starts(innocents)
    letters = world.queue.dlq.list().items
    poisoned = [letter.original_task.task_id for letter in letters if letter.failure_type is FailureType.POISONED]
    wrong = len(set(poisoned) - {killer})
    return Felt(
        extra,
        None,
        wrong,
        within_bound=extra <= 2 and poisoned == [killer],
        details=f"{world.starts()[killer]} starts of it",
    )


@case("B2", neighbor="a new killer every 2 s", bound="2 extra starts; p99 wait 0.5 s with a spare process")
def kills_processes_at_intervals(world: World) -> Felt:
    world.start_worker("--processes", "2", "--concurrency", "4", ready=2)
    others: list[str] = []
    began = world.now()
    for number in range(80):
        if number % 20 == 0:
            world.push("mallory", "dies", max_retries=0)
        others.append(world.push(f"user{number % 5}", "nap", 0.02))
        eventually(lambda number=number: world.now() - began > 0.1 * (number + 1))  # type: ignore[misc]
    world.wait_for(others, TaskState.FINISHED)
    waits = [
        task.started_at - task.ready_at
        for task in map(world.queue.get_task, others)
        if task.started_at and task.ready_at
    ]
    extra, p99 = world.extra_starts(others), percentile(waits, 0.99)
    return Felt(
        extra, p99, 0, within_bound=extra <= 2 and p99 <= 0.5, details="one per 10 s is measured by the benchmarks"
    )


@case(
    "B3",
    neighbor="blocks in C beyond its hard limit, 4 times",
    bound="1 extra start in 10 minutes for each name and user",
)
def blocks_beyond_its_hard_limit(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "4", FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.2")
    innocents = [world.push(user, "nap", 3.0) for user in ("ann", "bob")]
    eventually(lambda: len(world.starts()) == len(innocents))
    blocking = [world.push("mallory", "deaf", 30.0, timeout=0.5, max_retries=3)]
    world.wait_for(innocents, TaskState.FINISHED, 40)
    world.wait_for(blocking, TaskState.FAILED, 40)
    extra = world.extra_starts(innocents)
    given_back = max(world.queue.get_task(task_id).given_back for task_id in innocents)
    return Felt(
        extra,
        None,
        0,
        within_bound=extra <= 1,
        details=f"{world.starts()[blocking[0]]} starts of it, given back: {given_back}",
    )


@case("D9", neighbor="uses more memory than its max_memory", bound="unaffected")
def exceeds_its_memory(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "4")
    innocents = [world.push(user, "nap", 2.0) for user in ("ann", "bob")]
    eventually(lambda: len(world.starts()) == len(innocents))
    hungry = world.push("mallory", "hungry", max_retries=0)
    world.wait_for(innocents, TaskState.FINISHED, 40)
    world.wait_for([hungry], TaskState.FAILED, 40)
    (letter,) = world.queue.dlq.list().items
    extra = world.extra_starts(innocents)
    return Felt(extra, None, 0, within_bound=extra == 0 and "TaskMemoryError" in letter.reason)


@case("B3", neighbor="kills its process next to an isolated task", bound="unaffected")
def kills_the_process_that_fetched_an_isolated_task(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "4")
    isolated = world.push("ann", "isolated_nap", 2.0)
    eventually(world.starts)
    world.push("mallory", "dies", max_retries=0)
    world.wait_for([isolated], TaskState.FINISHED, 40)
    extra = world.extra_starts([isolated])
    return Felt(extra, None, 0, within_bound=extra == 0)
