"""A program that runs a `Worker` or an `AsyncWorker` and gets a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import DEADLINE, ROOT, eventually, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push

# It begins as a program without handlers of signals: what measures the coverage of tests sets one for SIGTERM.
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
def test_a_signal_lets_running_tasks_end(
    server: Server, redis: Redis, queue: FairQueue, push: Push, kind: str, number: signal.Signals
) -> None:
    task_id = push("nap_async" if kind == "loop" else "nap", 1.0)
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.worker.project.settings",
        "PYTHONPATH": str(ROOT),
        "TEST_SERVER": server.url,
    }
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(call=CALLS[kind])], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        eventually(lambda: recorded(redis, STARTED))
        program.send_signal(number)
        output, _ = program.communicate(timeout=DEADLINE)
    finally:
        program.kill()
    assert (program.returncode, output) == (0, "the program goes on\n")
    task = queue.get_task(task_id)
    assert (task.state, task.delivery) == (TaskState.FINISHED, 1)
