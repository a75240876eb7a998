"""Signals beyond SIGTERM and SIGINT, and signals that come early."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import ROOT, Workers, eventually
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from pathlib import Path


AT_ONCE = (signal.SIGQUIT, signal.SIGXCPU)
"""Two of the signals that the supervisor treats alike."""


@pytest.mark.parametrize("number", AT_ONCE)
def test_a_process_ended_by_a_signal_returns_its_tasks(workers: Workers, number: signal.Signals) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    task_id = workers.push("nap", 60)
    eventually(lambda: workers.redis.llen(STARTED))
    worker.send(number)
    assert worker.wait() == 0
    assert workers.state(task_id) is TaskState.QUEUED
    assert workers.kinds(task_id) == ["released"]


def test_a_quit_from_the_terminal_counts_as_no_crash(workers: Workers) -> None:
    """Ctrl-\\ reaches all processes of the group."""
    worker = workers.start("--concurrency", "2").wait_ready()
    task_id = workers.push("nap", 60)
    eventually(lambda: workers.redis.llen(STARTED))
    os.killpg(worker.pid, signal.SIGQUIT)
    assert worker.wait() == 0
    assert workers.kinds(task_id) == ["released"]


@pytest.mark.thorough
def test_a_signal_prints_the_stacks_of_a_worker(workers: Workers) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    workers.push("deaf", 3)
    eventually(lambda: workers.redis.llen(STARTED))
    worker.send(signal.SIGUSR1)
    eventually(lambda: "in deaf" in worker.log)
    assert "supervisor.py" in worker.log
    (child,) = worker.children()
    assert child.is_running()
    assert worker.stop() == 0


@pytest.mark.thorough
def test_writing_stacks_again_and_again_ends_no_process(workers: Workers) -> None:
    """Python may crash if it writes the stacks of threads that run at the same moment."""
    worker = workers.start("--concurrency", "4").wait_ready()
    (child,) = worker.children()
    payload = {"args": [1, 2], "kwargs": {}}
    last = workers.queue.push_batch(
        [Task.create(f"u{number % 20}", 3, payload, name="add") for number in range(10_000)]
    )[-1]
    while not workers.queue.get_task(last.task_id).state.is_ended:
        child.send_signal(signal.SIGUSR1)
    eventually(lambda: "Current thread" in worker.log)
    assert worker.children() == [child]
    assert "died" not in worker.log


def test_stacks_of_a_process_that_does_not_respond_are_shown(workers: Workers) -> None:
    worker = workers.start("--concurrency", "2").wait_ready()
    (child,) = worker.children()
    workers.push("backtrack", 40)  # this regular expression would run for days
    eventually(lambda: workers.redis.llen(STARTED))
    eventually(lambda: "has not responded" in worker.log)
    worker.send(signal.SIGUSR1)
    eventually(lambda: "in backtrack" in worker.log)
    assert worker.children() == [child]
    child.kill()


@pytest.mark.parametrize("slow", ["app", "settings"])
def test_a_worker_stopped_while_its_project_loads_exits_with_0(workers: Workers, tmp_path: Path, slow: str) -> None:
    """Settings are read before Django imports the app: there ``manage.py`` has imported the package."""
    (tmp_path / "slow_project.py").write_text(
        "import os, time\nfrom pathlib import Path\nPath(os.environ['LOADING']).touch()\n"
        # Not one long sleep: Python calls no handler in it if the signal came just before the sleep began.
        "for _ in range(6000):\n    time.sleep(0.01)\n"
    )
    loads = "import slow_project" if slow == "settings" else "INSTALLED_APPS = [*INSTALLED_APPS, 'slow_project']"
    (tmp_path / "slow_settings.py").write_text(f"from tests.worker.project.settings import *\n{loads}\n")
    first = "import django_fairque\n" if slow == "settings" else ""
    (tmp_path / "manage.py").write_text(
        f"{first}import sys\nfrom django.core.management import execute_from_command_line\n"
        "if __name__ == '__main__':\n    execute_from_command_line(sys.argv)\n"
    )
    environment = {"DJANGO_SETTINGS_MODULE": "slow_settings", "LOADING": str(tmp_path / "loading")}
    path = f"{tmp_path}:{ROOT}"  # the first of them is where the program runs
    worker = workers.start_program("manage.py", "fairque_worker", PYTHONPATH=path, **environment)
    eventually((tmp_path / "loading").exists)
    assert worker.stop() == 0


# The program begins without a handler of SIGTERM, because the tool that measures coverage sets one.
PROGRAM = """
import asyncio
import signal
import django
signal.signal(signal.SIGTERM, signal.SIG_DFL)
django.setup()
from django_fairque import AsyncWorker, Worker
{call}
print("the program goes on")
"""
CALLS = {"threads": 'Worker(["default"]).run()', "loop": 'asyncio.run(AsyncWorker(["default"]).run())'}


@pytest.mark.parametrize(
    ("kind", "number"), [("threads", signal.SIGTERM), ("loop", signal.SIGTERM), ("loop", signal.SIGINT)]
)
def test_a_signal_lets_running_tasks_of_a_class_end(workers: Workers, kind: str, number: signal.Signals) -> None:
    task_id = workers.push("nap_async" if kind == "loop" else "nap", 1.0)
    program = workers.start_program("-c", PROGRAM.format(call=CALLS[kind]))
    workers.wait_started()
    program.send(number)
    assert program.wait() == 0
    assert program.log.endswith("the program goes on\n")
    task = workers.queue.get_task(task_id)
    assert (task.state, task.delivery) == (TaskState.FINISHED, 1)
