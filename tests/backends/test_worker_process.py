"""A worker process as an operator starts it runs tasks of django.tasks and the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_fairque.backends.compat import AnyResult, TaskResultStatus
from tests.fixture_types import FairQueue, Server
from tests.worker.conftest import WorkerProcess, eventually

from .conftest import Configure
from .project import tasks


@pytest.fixture
def worker(server: Server, queue: FairQueue, tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(
        server,
        tmp_path,
        *("--queue", "default", "--queue", "mail"),
        DJANGO_SETTINGS_MODULE="tests.backends.project.settings",
    )
    yield process
    process.close()


def is_finished(result: AnyResult) -> bool:
    result.refresh()
    return result.is_finished


def test_a_worker_process_runs_tasks_of_the_django_backend_with_retries(
    queue: FairQueue, worker: WorkerProcess
) -> None:
    ordinary, mailed = tasks.ordinary.enqueue("ann", 1), tasks.add.using(queue_name="mail").enqueue(1, 2)
    described, failed = tasks.describe.enqueue(), tasks.fail_async.enqueue("OwnError")
    assert ordinary.wait(20) == "ann 1"
    eventually(lambda: all(is_finished(result) for result in (mailed, described, failed)))
    assert mailed.return_value == 3
    assert described.return_value["pid"] != os.getpid()
    assert (failed.status, failed.errors[0].exception_class) == (TaskResultStatus.FAILED, tasks.OwnError)
    assert worker.stop() == 0, worker.log
    assert f"task {failed.id} tests.backends.project.tasks.fail_async of user default failed" in worker.log
    assert queue.check_invariants() == []


def test_a_task_whose_process_dies_starts_up_to_its_maximum_number_of_attempts(
    queue: FairQueue, worker: WorkerProcess, configure: Configure, tmp_path: Path
) -> None:
    limits = {tasks.die: 1, tasks.die_too: 2}
    configure(TASK_OPTIONS={task.module_path: {"MAX_DELIVERIES": limit} for task, limit in limits.items()})
    begun = tmp_path / "begun"
    for task, limit in limits.items():  # one after the other: each would end the other's process
        begun.write_text("")
        result = task.enqueue(str(begun))
        eventually(lambda: is_finished(result))  # noqa: B023 - called before the next round
        assert begun.read_text() == "x" * limit
        assert result.status is TaskResultStatus.FAILED
        assert queue.get_task(result.id).delivery == limit
    assert worker.stop() == 0, worker.log
