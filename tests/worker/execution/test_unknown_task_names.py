"""A task of a name that no worker knows is reported everywhere, before anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.wait_explanations import reasons
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker


def test_a_name_that_no_worker_knows_is_reported_first(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker("--processes", "2").wait_ready(2)
    task_id = push("shop.no_such_task")
    eventually(lambda: queue.get_task(task_id).state is TaskState.SCHEDULED)
    first = (
        "no worker knows a task named shop.no_such_task: deploy its code, or import its module where the workers start"
    )
    eventually(lambda: queue.health().reasons[:1] == [first])
    assert queue.health().status == "degraded"
    kinds = [(reason.kind, reason.text) for reason in reasons(queue, task_id)]
    assert kinds[0][0] == "unknown_name"
    assert kinds[0][1].startswith("No worker knows a task named shop.no_such_task: deploy its code")
    others = [push("shop.no_such_task") for _ in range(20)]
    eventually(lambda: all(queue.get_task(each).state is TaskState.SCHEDULED for each in others))
    warnings = [line for line in worker.log.splitlines() if " WARNING " in line and "can't run: no task named" in line]
    assert 1 <= len(warnings) <= 2  # once for each process
