"""How long it takes until a killed process is replaced, and how much memory processes need, for each way to begin."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from django_fairque.engine.models import Task
from django_fairque.engine.queue import FairQueue
from tests.servers import Server

from .processes import wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from .table import Table

METHODS = ("spawn", "forkserver")
CHILDREN = 8


def run(table: Table, *, quick: bool) -> None:
    for method in METHODS:
        _time(table, method, 5 if quick else 30)
    for method in METHODS:
        _memory(table, method)


def _time(table: Table, method: str, kills: int) -> None:
    """Seconds from the death of a worker's only process until a task runs in the next one, and what that cost."""
    with Server() as server, server.client() as client, worker(server, "--start-method", method):
        queue = FairQueue(client)
        wait_for_workers(queue)
        _run_one(queue)
        took, cpu = [], 0.0
        for _ in range(kills):
            (child,) = _children(queue)
            child.kill()
            began = time.monotonic()
            _run_one(queue)
            took.append(1000 * (time.monotonic() - began))
            cpu += sum(sum(child.cpu_times()[:2]) for child in _children(queue))
        table.add(f"{method}: from a kill to the next task", took, "ms")
        table.add(f"{method}: processor time of a new process until then", 1000 * cpu / kills, "ms")


def _memory(table: Table, method: str) -> None:
    """Proportional set sizes: a page that several processes share counts once, in parts."""
    with (
        Server() as server,
        server.client() as client,
        worker(server, "--start-method", method, "--processes", str(CHILDREN)) as process,
    ):
        queue = FairQueue(client)
        wait_for_workers(queue, CHILDREN)
        tasks = [Task.create(f"u{i % 7}", 3, {"args": [0.005], "kwargs": {}}, name="bench.busy") for i in range(4000)]
        queue.push_batch(tasks)
        wait_until(lambda: queue.get_stats(0).states["finished"] == len(tasks))
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        table.add(f"{method}: {CHILDREN} processes and all they need", sum(map(_pss, family)), "MB")
        table.add(f"{method}: one of them", [_pss(child) for child in _children(queue)], "MB")


def _run_one(queue: FairQueue) -> None:
    task_id = queue.push(Task.create("u1", 3, {"args": [0.0], "kwargs": {}}, name="bench.busy")).task_id
    wait_until(lambda: queue.get_task(task_id).state.is_ended)


def _children(queue: FairQueue) -> list[psutil.Process]:
    pids = {int(record.info["pid"]) for record in queue.workers() if record.info.get("pid")}
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def _pss(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    (size,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size / 1024
