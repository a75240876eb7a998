"""Outcomes that a process had not reported when it was killed: its supervisor reports them, the tasks do not run again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import psutil
import pytest

from django_fairque.engine.model.task import Task
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue

SLOTS = 4
TASKS = 3000
LATEST = {"append": 0.1, "fail_and_append": 0.1, "append_async": 0.5}
"""Seconds before its process is killed within which a task that has ended may have to run again, by the processor time of that
process: on a machine with other work the time of day is no measure. Between the end of a task and its record the other threads
may run, some five of them for 5 ms each. The end of a coroutine is recorded by another thread, which may have to wait for a
processor on a busy machine while a process that has just started imports modules."""


def _push(queue: FairQueue, name: str, path: Path) -> None:
    payload = {"args": [str(path)], "kwargs": {}}
    tasks = [Task.create(f"user-{i % 3}", 3, payload, name=name, max_retries=0) for i in range(TASKS)]
    queue.push_batch(tasks)


class Line(NamedTuple):
    task_id: str
    pid: int
    moment: float


def _lines(path: Path) -> list[Line]:
    found = []
    written = path.read_text() if path.exists() else ""
    for line in written[: written.rfind("\n") + 1].splitlines():  # without one that is just being written
        task_id, pid, moment = line.split()
        found.append(Line(task_id, int(pid), float(moment)))
    return found


def _processor_time(pid: int) -> float:
    """Seconds that all threads of a process have used."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock id that clock_getcpuclockid(3) returns


def _wait_for(path: Path, lines: int) -> None:
    """Until there are more lines than that, or all tasks have ended: on a busy machine this process may look too late."""

    def is_reached() -> bool:
        found = _lines(path)
        return len(found) > lines or len({line.task_id for line in found}) == TASKS

    eventually(is_reached)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["append", pytest.param("fail_and_append", marks=pytest.mark.slow), "append_async"])
def test_only_the_last_few_tasks_of_a_killed_process_run_twice(workers: Workers, tmp_path: Path, name: str) -> None:
    path = tmp_path / "ended"
    _push(workers.queue, name, path)
    worker = workers.start("--concurrency", str(SLOTS)).wait_ready()
    for share in (1, 2):
        _wait_for(path, share * TASKS // 4)
        pid = _lines(path)[
            -1
        ].pid  # the worker's health, which is written once a second, may still name the process before
        if not psutil.pid_exists(pid):
            break  # the first process had ended all tasks before it was killed
        child = psutil.Process(pid)
        killed = _processor_time(pid)
        child.kill()
        child.wait()
        ended = _lines(path)
        _wait_for(path, len(ended) + 50)
        again = {line.task_id for line in _lines(path)[len(ended) :]} & {line.task_id for line in ended}
        assert len(again) <= 2 * SLOTS
        last = killed - LATEST[name]
        assert again <= {line.task_id for line in ended if line.pid == pid and line.moment > last}
    eventually(lambda: len({line.task_id for line in _lines(path)}) == TASKS, 60)
    assert worker.stop() == 0
