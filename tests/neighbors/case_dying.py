"""Tasks that end their process."""

from __future__ import annotations

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
