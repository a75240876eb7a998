"""A worker whose machine fails is listed as lost; a worker that was stopped is not."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


def pass_time(queue: FairQueue, seconds: float) -> float:
    """Sweep at the time when the records of all workers that are silent from now on have ended."""
    moment = time.time() + seconds
    queue.sweep(now=moment)
    return moment


@pytest.mark.thorough
def test_a_worker_that_is_killed_with_all_its_processes_is_lost(workers: Workers) -> None:
    queue = workers.queue
    worker = workers.start("--processes", "2", "--concurrency", "2", "--worker", "web").wait_ready(2)
    workers.push("deaf", 60.0)
    workers.wait_started()
    eventually(lambda: any(len(record.info.get("activity", "")) > 100 for record in queue.workers()))
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    assert queue.incidents.lost_workers() == []  # its last heartbeat still counts
    moment = pass_time(queue, 70)
    (lost,) = queue.incidents.lost_workers()
    assert (lost.name, lost.slots, len(lost.processes)) == ("web", 4, 2)
    (opened,) = queue.incidents.update(now=moment)
    assert str(opened.incident.text).startswith(
        f"worker {lost.worker} (2 processes, 4 slots) is lost: last heartbeat at "
    )
    assert any(reason.startswith(f"worker {lost.worker}") for reason in queue.health().reasons)
    workers.start("--worker", "web").wait_ready()  # its clock is that of this machine, 70 s behind the queue's
    eventually(lambda: queue.incidents.lost_workers() == [])


@pytest.mark.thorough
@pytest.mark.parametrize("is_drained", [False, True])
def test_a_worker_that_is_stopped_or_drained_and_stopped_is_not_lost(workers: Workers, *, is_drained: bool) -> None:
    queue = workers.queue
    worker = workers.start("--processes", "2").wait_ready(2)
    eventually(lambda: len(queue.workers()) == 2)
    if is_drained:
        for record in queue.workers():
            queue.set_worker_command(record.worker, "drain")
        eventually(lambda: all(record.info["status"] == "draining" for record in queue.workers()))
    assert worker.stop() == 0
    moment = pass_time(queue, 70)
    assert queue.incidents.lost_workers() == []
    assert queue.incidents.update(now=moment) == []
