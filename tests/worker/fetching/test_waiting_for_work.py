"""Waiting for work: who has nothing to do has asked for it before there is any."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worker.conftest import WorkerProcess


def has_stopped(process: psutil.Process) -> bool:
    """All of its threads: each of them goes on for a moment."""
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{process.pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


@contextmanager
def frozen(worker: WorkerProcess) -> Iterator[None]:
    """While nobody in it can do anything."""
    processes = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    os.killpg(worker.pid, signal.SIGSTOP)
    try:
        eventually(lambda: all(map(has_stopped, processes)))
        yield
    finally:
        os.killpg(worker.pid, signal.SIGCONT)


def test_an_idle_worker_gets_a_task_with_its_push(workers: Workers) -> None:
    """The worker need not send anything more, because its request is stored on the server."""
    worker = workers.start().wait_ready()

    def is_handed_out() -> bool:
        with frozen(worker):
            task_id = workers.push("add", 1, 1)
            state = workers.state(task_id)
        workers.wait_for(task_id)
        assert workers.queue.get_task(task_id).delivery == 1
        return state is TaskState.STARTED

    eventually(is_handed_out)  # at first the worker may not wait, or the server may not know it


def test_a_busy_worker_gets_no_tasks_that_it_did_not_request(workers: Workers) -> None:
    """Its running tasks could delay a new task that another worker could begin."""
    worker = workers.start("--concurrency", "4").wait_ready()
    workers.push("nap", 60.0)
    workers.wait_started()
    with frozen(worker):
        for _ in range(3):
            assert workers.queue.get_task(workers.push("add", 1, 1)).state is TaskState.QUEUED


@pytest.mark.thorough
def test_a_fetch_of_a_dead_worker_keeps_no_tasks(workers: Workers) -> None:
    worker = workers.start().wait_ready()
    workers.run("add", 1, 1)
    processes = [worker.children()[0], *psutil.Process(worker.pid).children(recursive=True)]
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    assert psutil.wait_procs(processes, 5)[1] == []
    assert workers.queue.get_task(workers.push("add", 1, 1)).state is TaskState.QUEUED


@pytest.mark.thorough
@pytest.mark.parametrize("attempt", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_tasks_received_while_stopping_are_not_lost(workers: Workers, attempt: int) -> None:
    """Its reply may lie in a socket that nobody reads any more."""
    worker = workers.start().wait_ready()
    workers.run("add", attempt, 1)
    with frozen(worker):
        task_id = workers.push("add", 1, 1)
        worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    task = workers.queue.get_task(task_id)
    assert (task.state, task.delivery) in {(TaskState.FINISHED, 1), (TaskState.QUEUED, 0)}
