"""Workers carry out acts on many tasks, and other workers go on when one is killed."""

from __future__ import annotations

import os
import signal

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.worker.conftest import Workers, eventually


@pytest.mark.thorough
def test_a_worker_goes_on_with_the_act_of_a_worker_that_was_killed(workers: Workers) -> None:
    queue = workers.queue
    ids = [workers.push("noop") for _ in range(60)]
    for lease in queue.pop_batch(60, "w"):
        queue.fail(lease, "boom", retry=False)
    first = workers.start("--processes", "2").wait_ready(2)
    act = queue.acts.start("retry", pace=10)
    eventually(lambda: 0 < queue.acts.get(act.id).done < 60)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = workers.start("--processes", "2").wait_ready(2)
    eventually(lambda: queue.acts.get(act.id).succeeded == 60)
    assert queue.acts.get(act.id).done == 60
    assert workers.states(ids) == {TaskState.FINISHED}
    assert all(workers.kinds(task_id).count("requeued") == 1 for task_id in ids)
    assert second.stop() == 0
    assert "could not go on" not in second.log


@pytest.mark.thorough
def test_a_worker_goes_on_with_the_move_of_a_worker_that_was_killed(workers: Workers, redis: Redis) -> None:
    queue, other = workers.queue, FairQueue(redis, "mail", QueueConfig())
    ids = [workers.push("noop") for _ in range(60)]
    for lease in queue.pop_batch(60, "w"):
        queue.fail(lease, "boom", retry=False)
    first = workers.start("--processes", "2").wait_ready(2)
    act = queue.acts.start("move", to="mail", pace=10)
    eventually(lambda: 0 < queue.acts.get(act.id).done < 60)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = workers.start("--processes", "2").wait_ready(2)
    eventually(lambda: queue.acts.get(act.id).state == "done")
    assert queue.acts.get(act.id).done == 60
    started = other.pop("w")
    assert started
    queue.acts.undo(act.id)
    eventually(lambda: queue.acts.get(act.id).state == "undone")
    assert (queue.acts.get(act.id).restored, queue.acts.get(act.id).kept, queue.dlq.count()) == (59, 1, 59)
    assert (other.pop("w"), other.get_stats(0).states["canceled"]) == (None, 59)
    assert all(workers.kinds(task_id).count("moved") == 1 for task_id in ids)
    assert second.stop() == 0
    assert "could not go on" not in second.log
