"""Tasks that end their process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from .world import World


LONGEST_WAIT = 10.0
"""Until the last start of a task: the process is replaced and its tasks are begun again."""


@case("B0", neighbor="kills its process once", bound=f"1 extra start; a wait of {LONGEST_WAIT:g} s")
def kills_its_process(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "5")
    others = world.push_many("ann", "nap", 4, 1.0)
    eventually(lambda: len(world.starts()) == len(others))  # next to them, and not in another process
    world.push("mallory", "dies", max_retries=0)
    world.wait_for(others, TaskState.FINISHED)
    waits = [task.started_at - task.created_at for task in map(world.queue.get_task, others) if task.started_at]
    extra = world.extra_starts(others)
    wait = percentile(waits, 0.99)
    return Felt(extra, wait, 0, within_bound=extra <= 1 and wait <= LONGEST_WAIT)


LONG_TASKS = 7


@case(
    "B7",
    neighbor=f"kills its process next to {LONG_TASKS} long tasks",
    bound=f"1 extra start; all run at once again after {LONGEST_WAIT:g} s",
)
def kills_its_process_next_to_long_tasks(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", f"{LONG_TASKS + 1}")
    end = world.directory / "end"
    others = [world.push(f"user{number}", "waits_for", str(end)) for number in range(LONG_TASKS)]
    eventually(lambda: len(world.starts()) == len(others))
    world.push("mallory", "dies", max_retries=0)
    eventually(lambda: [world.starts().get(task_id) for task_id in others] == [2] * LONG_TASKS, 60)
    running = sum(state is TaskState.STARTED for state in world.states(others))  # none ends before there is the file
    waits = [task.started_at - task.created_at for task in map(world.queue.get_task, others) if task.started_at]
    end.touch()
    world.wait_for(others, TaskState.FINISHED)
    extra, wait = world.extra_starts(others), percentile(waits, 0.99)
    is_within = extra <= 1 and wait <= LONGEST_WAIT and running == LONG_TASKS
    return Felt(extra, wait, 0, is_within, f"{running} ran at once")


CRASHING_TASKS = 30
MAX_SHARED_DEATHS = 5
"""Processes that it may end before two of its tasks have crashed alone."""


@case(
    "B8",
    neighbor=f"has {CRASHING_TASKS} tasks that each kill their process",
    bound=f"at most {MAX_SHARED_DEATHS} processes die in which others' tasks may run; a wait of {LONGEST_WAIT:g} s",
)
def kills_a_process_with_each_task(world: World) -> Felt:
    worker = world.start_worker("--processes", "1", "--concurrency", "4", FAIRQUE_QUEUE__MAX_DELIVERIES="2")
    killers = world.push_many("mallory", "dies", CRASHING_TASKS, max_retries=0)
    others: list[str] = []

    def are_gone() -> bool:
        others.extend(world.push(f"user{number}", "nap", 0.1) for number in range(2))
        world.wait_for(others, TaskState.FINISHED)
        return world.queue.get_stats().states["failed"] == len(killers)

    eventually(are_gone, 60)
    waits = [task.started_at - task.created_at for task in map(world.queue.get_task, others) if task.started_at]
    died = len(re.findall(r"worker process \S+\.0\.\d+ died", worker.log))
    extra, wait = world.extra_starts(others), percentile(waits, 0.99)
    is_within = died <= MAX_SHARED_DEATHS and wait <= LONGEST_WAIT
    return Felt(extra, wait, 0, is_within, f"{died} shared processes died")
