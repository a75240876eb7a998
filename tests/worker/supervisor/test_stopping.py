"""Signals: the first one lets running tasks end, the second one gives them back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import both_ways, eventually, recorded
from tests.worker.project import tasks
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

pytestmark = both_ways


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_task_may_end_and_the_others_stay(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, number: signal.Signals
) -> None:
    worker = start_worker("--concurrency", "2").wait_ready()
    queue.push_batch(Task.create("ann", 3, {"args": [0.5], "kwargs": {}}, name="nap") for _ in range(20))
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    worker.send(number)
    assert worker.wait() == 0
    assert len(recorded(redis, STARTED)) == len(recorded(redis, ENDED)) == 2
    states = queue.get_stats().states
    assert (states["finished"], states["queued"], states["started"]) == (2, 18, 0)
    assert all(task.delivery == 0 for task in queue.tasks(TaskState.QUEUED).items)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_a_terminal_sends_to_the_group_is_the_supervisors_alone(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, number: signal.Signals
) -> None:
    worker = start_worker("--processes", "2", "--concurrency", "1").wait_ready(2)
    ids = [push("nap", 1.0) for _ in range(2)]
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    os.killpg(worker.pid, number)
    assert worker.wait() == 0
    assert len(recorded(redis, STARTED)) == len(recorded(redis, ENDED)) == 2
    assert [queue.get_task(task_id).state for task_id in ids] == [TaskState.FINISHED] * 2
    assert "died" not in worker.log


def test_what_does_not_end_in_time_is_given_back(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker(FAIRQUE_WORKER__SHUTDOWN_TIMEOUT="0.5").wait_ready()
    task_id = push("deaf", 60.0)
    eventually(lambda: recorded(redis, STARTED))
    assert worker.stop() == 0
    assert queue.get_task(task_id).state is TaskState.QUEUED
    assert [(a.kind, a.error) for a in queue.history(task_id)] == [("released", "worker stopped")]
    assert "1 running tasks are given back" in worker.log


def test_a_second_signal_gives_everything_back_at_once(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "2", FAIRQUE_WORKER__SHUTDOWN_TIMEOUT="60").wait_ready(2)
    children = worker.children()
    ids = [push("deaf", 60.0) for _ in range(4)]
    eventually(lambda: len(recorded(redis, STARTED)) == 4)
    worker.send(signal.SIGTERM)
    eventually(lambda: "stopping: 4 running tasks have 60 s to end" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert [queue.get_task(task_id).state for task_id in ids] == [TaskState.QUEUED] * 4
    assert all(queue.get_task(task_id).delivery == 0 for task_id in ids)
    assert psutil.wait_procs(children, 1)[1] == []


def test_a_child_that_gets_sigterm_is_replaced(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker().wait_ready()
    (child,) = worker.children()
    child.terminate()
    eventually(lambda: {each.pid for each in worker.children()} - {child.pid})
    task_id = push("add", 1, 1)
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)


def test_a_change_of_code_replaces_the_children(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--reload").wait_ready()
    (child,) = worker.children()
    task_id = push("nap", 0.3)
    eventually(lambda: recorded(redis, STARTED) and "watching the code" in worker.log)

    def noticed() -> bool:
        Path(tasks.__file__).touch()
        return "tasks.py changed" in worker.log

    eventually(noticed)
    eventually(lambda: {each.pid for each in worker.children()} - {child.pid})
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    assert len(recorded(redis, STARTED)) == 1


def test_a_child_that_does_not_exit_is_ended(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    task_id = push("leaves_a_thread")
    worker = start_worker("--burst")
    assert worker.wait() == 0
    assert queue.get_task(task_id).state is TaskState.FINISHED
    assert "has not exited" in worker.log
