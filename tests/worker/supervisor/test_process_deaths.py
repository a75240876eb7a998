"""Whatever dies, no task is lost, and a task that began twice has a recorded reason."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import both_ways, eventually, is_alive, recorded
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

pytestmark = both_ways


def test_a_killed_child_loses_nothing(queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker("--processes", "2", "--concurrency", "4").wait_ready(2)
    tasks = [Task.create(f"user{n % 7}", 3, {"args": [0.01], "kwargs": {}}, name="nap") for n in range(200)]
    queue.push_batch(tasks)
    for kill in range(2):
        eventually(lambda kill=kill: len(recorded(redis, STARTED)) > 50 * (kill + 1))  # type: ignore[misc]
        eventually(worker.children)[0].kill()
        eventually(lambda: len(worker.children()) == 2)
    eventually(lambda: queue.get_stats().states["finished"] == 200)
    starts = Counter(task_id for task_id, _ in recorded(redis, STARTED))
    assert set(starts) == {task.task_id for task in tasks}
    for task_id, count in starts.items():
        assert len(queue.history(task_id)) >= count - 1
    assert worker.stop() == 0


def test_what_a_killed_child_ran_is_started_again_at_once(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    start_worker("--processes", "2", "--concurrency", "1", FAIRQUE_WORKER__LEASE_SECONDS="30").wait_ready(2)
    task_id = push("nap", 1.0)
    ((_, pid),) = eventually(lambda: recorded(redis, STARTED))
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    assert time.monotonic() - killed < 15  # the time in which a process starts; the lease would take 30 s
    assert [(a.kind, a.error) for a in queue.history(task_id)] == [("crashed", "worker process died (signal 9)")]
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)


def test_a_task_that_kills_its_process_is_a_dead_letter_in_the_end(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    task_id = push("dies")
    start_worker("--processes", "2", FAIRQUE_QUEUE__MAX_DELIVERIES="3")
    eventually(lambda: queue.get_task(task_id).state is TaskState.FAILED)
    (entry,) = queue.dlq.list().items
    assert entry.failure_type is FailureType.POISONED
    assert len(recorded(redis, STARTED)) == 3
    good = push("add", 1, 1)
    eventually(lambda: queue.get_task(good).state is TaskState.FINISHED)


def test_what_only_lay_in_the_buffer_of_a_dead_child_does_not_count_as_crashed(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    # The batch waits 0.2 s for company; meanwhile the process dies of another task.
    worker = start_worker("--concurrency", "2").wait_ready()
    waiting = [push("index", number) for number in range(3)]
    eventually(lambda: queue.get_task(waiting[2]).state is TaskState.STARTED)
    worker.children()[0].kill()
    eventually(lambda: queue.history(waiting[0]))
    assert [attempt.kind for attempt in queue.history(waiting[0])] == ["released"]
    eventually(lambda: queue.get_task(waiting[0]).state is TaskState.FINISHED)


def test_children_die_with_their_supervisor_and_their_leases_end(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    first = start_worker("--processes", "2", FAIRQUE_WORKER__LEASE_SECONDS="1").wait_ready(2)
    children = first.children()
    task_id = push("nap", 30.0, timeout=60)
    eventually(lambda: recorded(redis, STARTED))
    first.send(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, children)))
    start_worker()
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    assert [attempt.kind for attempt in queue.history(task_id)] == ["lease_ended"]
    queue.cancel(task_id)


def test_a_frozen_worker_comes_back_to_find_its_task_taken(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    frozen = start_worker(FAIRQUE_WORKER__LEASE_SECONDS="1").wait_ready()
    (child,) = frozen.children()
    task_id = push("nap", 1.0)
    eventually(lambda: recorded(redis, STARTED))
    frozen.send(signal.SIGSTOP)
    child.suspend()
    start_worker().wait_ready()
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    frozen.send(signal.SIGCONT)
    with contextlib.suppress(psutil.NoSuchProcess):  # its supervisor may have ended it already
        child.resume()
    eventually(lambda: "its leases could not be renewed in time" in frozen.log or len(recorded(redis, ENDED)) == 2)
    assert [attempt.kind for attempt in queue.history(task_id)] == ["lease_ended"]
    assert queue.get_stats().totals["finished"] == 1


def test_a_long_task_keeps_its_lease(queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
    start_worker("--processes", "2", FAIRQUE_WORKER__LEASE_SECONDS="1.5")
    task_id = push("deaf", 4.0)
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    assert len(recorded(redis, STARTED)) == 1
    assert queue.history(task_id) == []
