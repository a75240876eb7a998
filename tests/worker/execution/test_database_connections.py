"""Connections to the database live as long as Django's settings say, whatever runs the tasks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import ROOT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push, StartWorker

MAX_AGE = 2
AN_ASYNC_WORKER = """
import asyncio, django
django.setup()
from django_fairque import AsyncWorker
asyncio.run(AsyncWorker(["default"], concurrency=1).run())
"""


@pytest.fixture(params=["processes", "loop"])
def worker(request: pytest.FixtureRequest, server: Server, start_worker: StartWorker, tmp_path: Path) -> Iterator[None]:
    """One that runs one task at a time: each kind of task has one thread for its queries, and with it one connection."""
    environment = {"TEST_DATABASE": str(tmp_path / "db.sqlite3"), "TEST_CONN_MAX_AGE": str(MAX_AGE)}
    if request.param == "processes":
        start_worker("--concurrency", "1", **environment)
        yield
        return
    project = {"DJANGO_SETTINGS_MODULE": "tests.worker.project.settings", "TEST_SERVER": server.url}
    process = subprocess.Popen(
        [sys.executable, "-c", AN_ASYNC_WORKER], cwd=ROOT, env={**os.environ, **project, **environment}
    )
    yield
    process.kill()
    process.wait()


@pytest.mark.usefixtures("worker")
def test_a_connection_that_grew_too_old_between_two_tasks_is_not_used(queue: FairQueue, push: Push) -> None:
    def found_an_open_one(name: str) -> bool:
        task_id = push(name)
        eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
        return bool(queue.get_task(task_id).result[1])

    names = ("query", "query_async")
    for name in names:
        assert not found_an_open_one(name)
        assert found_an_open_one(name)
    time.sleep(MAX_AGE + 0.1)
    for name in names:
        assert not found_an_open_one(name)
