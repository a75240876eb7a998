"""Copies of a worker process that its tasks make with `os.fork()`, and processes that become workers by mistake."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.worker.conftest import Workers, eventually, is_alive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_forked_copy_of_a_worker_process_ends_with_it(workers: Workers, end: str) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    workers.run("forks", 600.0)
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
def test_a_forked_copy_that_returns_from_its_task_runs_no_other_task(workers: Workers) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    ids = [workers.push("forks", 0.0) for _ in range(10)]
    ids += [workers.push(name) for name in ("forks_async", "forks_in_thread", "forks_in_sync_code") for _ in range(10)]
    ids += [workers.push("nap", 0.001, user="bob") for _ in range(300)]
    ids += [workers.push("nap_async", 0.01, user="carl") for _ in range(20)]
    workers.wait_for(*ids)
    (child,) = worker.children()
    eventually(lambda: not [copy for copy in child.children() if is_alive(copy)])
    assert workers.starts() == dict.fromkeys(ids, 1)
    assert {pid for _, pid in workers.started()} == {child.pid}
    assert worker.stop() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_starts_one_worker(workers: Workers, tmp_path: Path, start_method: str) -> None:
    """A process that is spawned imports the main module, which starts a worker. So does a fork server that replaces another."""
    program = tmp_path / "manage.py"
    program.write_text(
        "import sys\nfrom django.core.management import execute_from_command_line as run\nrun(sys.argv)\n"
    )
    worker = workers.start_program(str(program), "fairque_worker", start_method=start_method)
    workers.run("add", 1, 2)
    for process in psutil.Process(worker.pid).children(recursive=True):
        process.kill()
    workers.run("add", 1, 2)
    assert worker.log.count("django_fairque 0.") == 1, "one supervisor introduced itself"
    left = psutil.Process(worker.pid).children(recursive=True)
    assert worker.stop() == 0, worker.log
    eventually(lambda: not any(map(is_alive, left)))
