"""A worker of two queues of which one always has tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.worker.conftest import eventually, recorded
from tests.worker.project.tasks import STARTED

from .cases import Felt, case

if TYPE_CHECKING:
    from .world import World

RUN_TIME = 0.05
PAUSE = 0.7
"""Seconds between two tasks of the second queue."""
PUSHED = 20


@case(
    "C7",
    neighbor="fills the first queue of a worker of two queues",
    bound="tasks of the second queue wait for a task and 0.05 s",
)
def fills_the_first_queue(world: World) -> Felt:
    mail = FairQueue(world.redis, "mail", QueueConfig())
    for user in range(20):
        world.push_many(f"user-{user}", "nap", 125, RUN_TIME)
    world.start_worker("--queue", "default", "mail", "--processes", "1", "--concurrency", "4", ready=1)
    eventually(lambda: len(recorded(world.redis, STARTED)) > 4)
    ids = []
    for _ in range(PUSHED):
        ids.append(mail.push(world.task("ann", "nap", RUN_TIME)).task_id)
        time.sleep(PAUSE)
    tasks = [mail.get_task(task_id) for task_id in ids]
    waits = [(task.started_at or time.time()) - task.created_at for task in tasks]
    wrong = sum(task.state is not TaskState.FINISHED for task in tasks)
    was_busy = world.queue.get_stats().states["queued"] > 0
    details = f"median wait {sorted(waits)[PUSHED // 2] * 1000:.0f} ms"
    return Felt(0, max(waits), wrong, was_busy and wrong == 0 and max(waits) <= RUN_TIME + 0.05, details)
