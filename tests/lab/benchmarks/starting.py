"""Measures, for each start method, a worker's start, its replacement of a killed process, and its memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .processes import wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from .table import Table

METHODS = ("spawn", "forkserver")


def run(table: Table, *, quick: bool) -> None:
    for method in METHODS:
        _start(table, method, 3 if quick else 10)
    for method in METHODS:
        _time(table, method, 5 if quick else 30)
    for children in (1, 8):
        for method in METHODS:
            _memory(table, method, children)


def _start(table: Table, method: str, starts: int) -> None:
    """Until a task has ended that waits for the worker, and what all its processes have computed by then."""
    took, cpu = [], []
    with Server() as server, server.client() as client:
        queue = FairQueue(client)
        for _ in range(starts):
            task_id = queue.push(Task.create("u1", 3, {"args": [0.0], "kwargs": {}}, name="bench.busy")).task_id
            began = time.monotonic()
            with worker(server, "--start-method", method) as process:
                wait_until(lambda task_id=task_id: queue.get_task(task_id).state.is_ended)  # type: ignore[misc]
                took.append(1000 * (time.monotonic() - began))
                cpu.append(1000 * sum(sum(member.cpu_times()[:2]) for member in _family(process.pid)))
    table.add(f"{method}: from the command to its first task", took, "ms")
    table.add(f"{method}: processor time of all its processes until then", cpu, "ms")


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


def _memory(table: Table, method: str, children: int) -> None:
    """Proportional set sizes: a page that several processes share counts once, in parts."""
    with (
        Server() as server,
        server.client() as client,
        worker(server, "--start-method", method, "--processes", str(children)) as process,
    ):
        queue = FairQueue(client)
        wait_for_workers(queue, children)
        tasks = [Task.create(f"u{i % 7}", 3, {"args": [0.005], "kwargs": {}}, name="bench.busy") for i in range(4000)]
        queue.push_batch(tasks)
        wait_until(lambda: queue.get_stats(0).states["finished"] == len(tasks))
        what = f"{children} process{'es' * (children > 1)} and all that comes with it"
        table.add(f"{method}: {what}", sum(map(_pss, _family(process.pid))), "MB")
        table.add(f"{method}: one of them", [_pss(child) for child in _children(queue)], "MB")


def _run_one(queue: FairQueue) -> None:
    task_id = queue.push(Task.create("u1", 3, {"args": [0.0], "kwargs": {}}, name="bench.busy")).task_id
    wait_until(lambda: queue.get_task(task_id).state.is_ended)


def _family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def _children(queue: FairQueue) -> list[psutil.Process]:
    pids = {int(record.info["pid"]) for record in queue.workers() if record.info.get("pid")}
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def _pss(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    (size,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size / 1024
