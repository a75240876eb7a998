"""A worker of two queues of which one always has tasks."""

from __future__ import annotations

from functools import partial

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.worker.conftest import Workers, eventually

PUSHED = 8
RUN_TIME = 0.05


@pytest.mark.parametrize(("slots", "queues"), [(4, ("mail", "default")), (1, ("default", "mail"))])
def test_two_queues_of_a_worker_share_its_slots(workers: Workers, slots: int, queues: tuple[str, str]) -> None:
    mail = FairQueue(workers.redis, "mail", QueueConfig())
    call = {"args": [RUN_TIME], "kwargs": {}}
    workers.queue.push_batch([Task.create(f"user-{number % 20}", 3, call, name="nap") for number in range(slots * 160)])
    workers.start("--queue", *queues, "--concurrency", str(slots)).wait_ready()
    eventually(lambda: len(workers.started()) > 4)
    waits = []
    for _ in range(PUSHED):
        task_id = workers.push("nap", 0.01, into=mail)
        eventually(partial(lambda task_id: mail.get_task(task_id).state is TaskState.FINISHED, task_id))
        task = mail.get_task(task_id)
        assert task.started_at is not None
        waits.append(task.started_at - task.created_at)
        assert workers.queue.get_stats().states["queued"], "the first queue was not busy"
    # The longest task and a round trip; one wait may be longer on a busy machine. If the worker does not learn of tasks in
    # `mail`, they wait for seconds.
    assert sorted(waits)[-2] < RUN_TIME + 0.2
