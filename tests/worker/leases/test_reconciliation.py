"""Tests that leases that the server has recorded, but the worker does not hold, are returned while long tasks run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.lab.campaign.proxy import DROP, PASS, Proxy
from tests.worker.conftest import ROOT, WorkerProcess, eventually, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.servers import Server

LOST = "task-of-a-lost-reply"
"""The id of the task whose lease is in a reply that is lost."""


class LosesReplies(Proxy):
    """Passes everything until a reply contains the lost task; that reply and all later ones are lost."""

    is_losing = False

    def fate(self, mine: str, data: bytes) -> str:
        self.is_losing = self.is_losing or (mine == DROP and LOST.encode() in data)
        return DROP if self.is_losing and mine == DROP else PASS


def push(queue: FairQueue, name: str, *args: object, user: str = "ann", task_id: str | None = None) -> str:
    return queue.push(Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, task_id=task_id)).task_id


def test_tasks_of_other_users_start_at_once_after_a_server_restart(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with WorkerProcess(server, tmp_path, "--concurrency", "4", lease_seconds="3") as worker:
        worker.wait_ready()
        with server.client() as client:
            queue = FairQueue(client)
            long = push(queue, "nap_local", 60)
            eventually(lambda: queue.get_task(long).state is TaskState.STARTED)
            time.sleep(1.1)  # a heartbeat: without one before, it would not notice that another server answers
            server.restart()
            eventually(lambda: "another server answers" in worker.log)
            others = [push(queue, "add", 1, 2, user=f"user{n}") for n in range(5)]
            pushed = time.monotonic()
            eventually(lambda: all(queue.get_task(other).state is TaskState.FINISHED for other in others))
            assert time.monotonic() - pushed < 10
            assert queue.get_task(long).state is TaskState.STARTED
            assert queue.history(long) == []
            assert queue.check_invariants() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("redis")  # an empty server: the test looks at all that has started
def test_a_lost_reply_leaves_no_lease_that_is_renewed(server: Server, tmp_path: Path) -> None:
    """The connections of the process that runs tasks go nowhere; those of its supervisor, which renews its leases, work."""
    way = LosesReplies(str(tmp_path / "way"), server.url.removeprefix("unix://").partition("?")[0])
    settings = tmp_path / "elsewhere.py"
    settings.write_text(
        "import multiprocessing\n"
        "from tests.worker.project.settings import *\n"
        "if multiprocessing.parent_process() is not None:\n"
        f"    FAIRQUE['REDIS'] = {{'URL': 'unix://{way.path}'}}\n"
    )
    environment = {
        "DJANGO_SETTINGS_MODULE": "elsewhere",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "FAIRQUE_WORKER__START_METHOD": "spawn",
    }
    with WorkerProcess(server, tmp_path, "--concurrency", "4", **environment) as worker:
        eventually(worker.children, 60)
        with server.client() as client:
            queue = FairQueue(client)
            long = push(queue, "nap_local", 60)
            eventually(lambda: queue.get_task(long).state is TaskState.STARTED)
            lost = push(queue, "count_me", 1, user="bob", task_id=LOST)
            eventually(lambda: queue.get_task(lost).state is TaskState.STARTED, 60)
            assert recorded(client, STARTED) == []
            another = WorkerProcess(server, tmp_path, "--concurrency", "1")
            try:
                eventually(lambda: queue.get_task(lost).state is TaskState.FINISHED, 60)
            finally:
                another.close()
            assert "had no answer from the server" in worker.log
            assert len([task_id for task_id, _ in recorded(client, STARTED) if task_id == lost]) == 1
        way.close()
