"""Whatever dies, no task is lost, and a task that began twice has a recorded reason."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil
import pytest

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import Workers, both_ways, eventually, is_alive

pytestmark = both_ways


def test_a_killed_worker_process_loses_no_task(workers: Workers) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "4").wait_ready(2)
    tasks = [Task.create(f"user{n % 7}", 3, {"args": [0.01], "kwargs": {}}, name="nap") for n in range(200)]
    workers.queue.push_batch(tasks)
    for kill in range(2):
        eventually(lambda kill=kill: len(workers.started()) > 50 * (kill + 1))  # type: ignore[misc]
        eventually(worker.children)[0].kill()
        eventually(lambda: len(worker.children()) == 2)
    eventually(lambda: workers.queue.get_stats().states["finished"] == 200)
    starts = workers.starts()
    assert set(starts) == {task.task_id for task in tasks}
    for task_id, count in starts.items():
        assert len(workers.queue.history(task_id)) >= count - 1
    assert worker.stop() == 0


def test_the_task_of_a_killed_child_starts_again_at_once(workers: Workers) -> None:
    workers.start("--processes", "2", "--concurrency", "1", lease_seconds="30").wait_ready(2)
    task_id = workers.push("nap", 1.0)
    ((_, pid),) = workers.wait_started()
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    workers.wait_started(2)
    assert time.monotonic() - killed < 15  # the time in which a process starts; the lease would take 30 s
    assert [(a.kind, a.error) for a in workers.queue.history(task_id)] == [
        ("crashed", "worker process died (signal 9)")
    ]
    workers.wait_for(task_id)


def test_a_task_that_kills_its_process_ends_as_a_dead_letter(workers: Workers) -> None:
    task_id = workers.push("dies")
    workers.start("--processes", "2", FAIRQUE_QUEUE__MAX_DELIVERIES="3")
    workers.wait_for(task_id, state=TaskState.FAILED)
    (entry,) = workers.queue.dlq.list().items
    assert entry.failure_type is FailureType.POISONED
    assert entry.reason.startswith("worker process died (")
    assert len(workers.started()) == 3
    workers.run("add", 1, 1)


def test_prefetched_tasks_of_a_dead_child_do_not_count_as_crashed(workers: Workers) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    waiting = [workers.push("index", number) for number in range(3)]
    eventually(lambda: workers.state(waiting[2]) is TaskState.STARTED)
    worker.children()[0].kill()
    eventually(lambda: workers.queue.history(waiting[0]))
    assert workers.kinds(waiting[0]) == ["released"]
    workers.wait_for(waiting[0])


def test_children_die_with_their_supervisor_and_their_leases_end(workers: Workers) -> None:
    first = workers.start("--processes", "2", lease_seconds="1").wait_ready(2)
    children = first.children()
    task_id = workers.push("nap", 30.0, timeout=60)
    workers.wait_started()
    first.send(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, children)))
    workers.start()
    workers.wait_started(2)
    assert workers.kinds(task_id) == ["lease_ended"]
    workers.queue.cancel(task_id)


@pytest.mark.thorough
def test_a_frozen_worker_finds_its_task_taken_over(workers: Workers) -> None:
    frozen = workers.start(lease_seconds="1").wait_ready()
    (child,) = frozen.children()
    task_id = workers.push("nap", 1.0)
    workers.wait_started()
    frozen.send(signal.SIGSTOP)
    child.suspend()
    workers.start().wait_ready()
    workers.wait_for(task_id)
    frozen.send(signal.SIGCONT)
    with contextlib.suppress(psutil.NoSuchProcess):  # its supervisor may have ended it already
        child.resume()
    eventually(lambda: "its leases could not be renewed in time" in frozen.log or len(workers.ended()) == 2)
    assert workers.kinds(task_id) == ["lease_ended"]
    assert workers.queue.get_stats().totals["finished"] == 1


@pytest.mark.thorough
def test_a_long_task_keeps_its_lease(workers: Workers) -> None:
    workers.start("--processes", "2", lease_seconds="1.5")
    task_id = workers.run("deaf", 4.0)
    assert len(workers.started()) == 1
    assert workers.queue.history(task_id) == []
