"""Copies of a worker process that its tasks make with `os.fork()`, and processes that become workers by mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import ROOT, eventually, is_alive, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push, StartWorker


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_copy_of_a_process_ends_with_it(queue: FairQueue, push: Push, start_worker: StartWorker, end: str) -> None:
    worker = start_worker("--concurrency", "2").wait_ready()
    task_id = push("forks", 600.0)
    eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
    (child,) = worker.children()
    (copy,) = child.children()
    if end == "stop":
        assert worker.stop() == 0
    else:
        worker.send(signal.SIGKILL)
        worker.wait()
    eventually(lambda: not is_alive(child))
    eventually(lambda: not is_alive(copy))


@pytest.mark.slow
def test_a_copy_that_returns_from_its_task_runs_no_other(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--concurrency", "2").wait_ready()
    ids = [push("forks", 0.0) for _ in range(10)]
    ids += [push(name) for name in ("forks_async", "forks_in_thread", "forks_in_sync_code") for _ in range(10)]
    ids += [push("nap", 0.001, user="bob") for _ in range(300)]
    ids += [push("nap_async", 0.01, user="carl") for _ in range(20)]
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in ids), 60)
    (child,) = worker.children()
    eventually(lambda: not [each for each in child.children() if is_alive(each)])
    assert Counter(each for each, _ in recorded(redis, STARTED)) == dict.fromkeys(ids, 1)
    assert {pid for _, pid in recorded(redis, STARTED)} == {child.pid}
    assert worker.stop() == 0


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_program_without_a_guard_is_one_worker(
    server: Server, queue: FairQueue, push: Push, tmp_path: Path, start_method: str
) -> None:
    """A process that is spawned imports the main module, which starts a worker. So does a fork server that replaces another."""
    program = tmp_path / "manage.py"
    program.write_text(
        "import sys\nfrom django.core.management import execute_from_command_line as execute\nexecute(sys.argv)\n"
    )
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
        "PYTHONPATH": str(ROOT),
        "TEST_SERVER": server.url,
        "FAIRQUE_WORKER__START_METHOD": start_method,
    }
    log = tmp_path / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, str(program), "fairque_worker"], env=environment, stdout=output, stderr=output, cwd=ROOT
        )
    try:
        task_id = push("add", 1, 2)
        eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED, 60)
        first = psutil.Process(worker.pid).children(recursive=True)
        for each in first:
            each.kill()
        task_id = push("add", 1, 2)
        eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED, 60)
        assert log.read_text().count("django_fairque 0.") == 1, "one supervisor introduced itself"
        left = psutil.Process(worker.pid).children(recursive=True)
        worker.terminate()
        assert worker.wait(60) == 0, log.read_text()
        eventually(lambda: not any(map(is_alive, left)))
    finally:
        worker.kill()
        worker.wait()
