"""Tasks whose errors, results and log lines raise when a worker describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.hostile import hostile_classes

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from .world import World


@case(
    "B9",
    neighbor="fails with errors whose special methods raise; the project's log handlers and filters raise too",
    bound="unaffected",
)
def raises_hostile_errors(world: World) -> Felt:
    worker = world.start_worker("--processes", "1", "--concurrency", "4", TEST_HOSTILE_LOGGING="1")
    before = worker.children()
    others: list[str] = []
    hostile: list[str] = []
    for index in range(len(list(hostile_classes()))):
        hostile += [world.push("mallory", name, index, max_retries=0) for name in ("hostile", "hostile_async")]
        others += [world.push(user, "nap", 0.02) for user in ("ann", "bob")]
    world.wait_for(others, TaskState.FINISHED)
    world.wait_for(hostile, TaskState.FAILED)
    tasks = map(world.queue.get_task, others)
    waits = [task.started_at - task.ready_at for task in tasks if task.started_at and task.ready_at]
    extra, p99 = world.extra_starts(others), percentile(waits, 0.99)
    wrong = sum("the worker failed" in letter.reason for letter in world.queue.dlq.list(limit=len(hostile)).items)
    return Felt(extra, p99, 0, within_bound=extra == 0 and not wrong and worker.children() == before)
