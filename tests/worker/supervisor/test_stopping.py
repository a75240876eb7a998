"""Signals: the first one lets running tasks end, the second one gives them back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import Workers, both_ways, eventually
from tests.worker.project import tasks

pytestmark = both_ways


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopping_worker_finishes_running_tasks_only(workers: Workers, number: signal.Signals) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    workers.queue.push_batch(Task.create("ann", 3, {"args": [0.5], "kwargs": {}}, name="nap") for _ in range(20))
    workers.wait_started(2)
    worker.send(number)
    assert worker.wait() == 0
    assert len(workers.started()) == len(workers.ended()) == 2
    states = workers.queue.get_stats().states
    assert (states["finished"], states["queued"], states["started"]) == (2, 18, 0)
    assert all(task.delivery == 0 for task in workers.queue.tasks(TaskState.QUEUED).items)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_terminal_s_signal_to_the_group_stops_only_the_supervisor(workers: Workers, number: signal.Signals) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "1").wait_ready(2)
    ids = [workers.push("nap", 1.0) for _ in range(2)]
    workers.wait_started(2)
    os.killpg(worker.pid, number)
    assert worker.wait() == 0
    assert len(workers.started()) == len(workers.ended()) == 2
    assert workers.states(ids) == {TaskState.FINISHED}
    assert "died" not in worker.log


def test_a_task_that_does_not_end_in_time_is_returned_to_the_queue(workers: Workers) -> None:
    worker = workers.start(shutdown_timeout="0.5").wait_ready()
    task_id = workers.push("deaf", 60.0)
    workers.wait_started()
    assert worker.stop() == 0
    assert workers.state(task_id) is TaskState.QUEUED
    assert [(a.kind, a.error) for a in workers.queue.history(task_id)] == [("released", "worker stopped")]
    assert "1 running tasks are given back" in worker.log


def test_a_second_signal_returns_all_tasks_at_once(workers: Workers) -> None:
    worker = workers.start("--processes", "2", shutdown_timeout="60").wait_ready(2)
    children = worker.children()
    ids = [workers.push("deaf", 60.0) for _ in range(4)]
    workers.wait_started(4)
    worker.send(signal.SIGTERM)
    eventually(lambda: "stopping: 4 running tasks have 60 s to end" in worker.log)
    worker.send(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert workers.states(ids) == {TaskState.QUEUED}
    assert all(workers.queue.get_task(task_id).delivery == 0 for task_id in ids)
    assert psutil.wait_procs(children, 1)[1] == []


def test_a_child_that_gets_sigterm_is_replaced(workers: Workers) -> None:
    worker = workers.start().wait_ready()
    (child,) = worker.children()
    child.terminate()
    eventually(lambda: {child.pid for child in worker.children()} - {child.pid})
    workers.run("add", 1, 1)


@pytest.mark.thorough
def test_a_change_of_code_replaces_the_children(workers: Workers) -> None:
    worker = workers.start("--reload").wait_ready()
    (child,) = worker.children()
    task_id = workers.push("nap", 0.3)
    eventually(lambda: workers.started() and "watching the code" in worker.log)

    def noticed() -> bool:
        Path(tasks.__file__).touch()
        return "tasks.py changed" in worker.log

    eventually(noticed)
    eventually(lambda: {child.pid for child in worker.children()} - {child.pid})
    workers.wait_for(task_id)
    assert len(workers.started()) == 1


@pytest.mark.thorough
def test_a_child_that_does_not_exit_is_ended(workers: Workers) -> None:
    task_id = workers.push("leaves_a_thread")
    worker = workers.start("--burst")
    assert worker.wait() == 0
    assert workers.state(task_id) is TaskState.FINISHED
    assert "has not exited" in worker.log
