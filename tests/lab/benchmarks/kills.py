"""``kill -9`` of worker processes under load: nothing is lost, every second start has a recorded reason."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import psutil

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.all_tasks import all_tasks
from tests.servers import Server

from .processes import wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from redis import Redis

    from .table import Table

EXPLAINED = {"crashed", "released", "lease_ended", "failed", "requeued"}


METHODS = {"forkserver": 200, "spawn": 20}
"""The number of kills for each start method. A spawned process takes seconds to begin, so fewer are killed."""

LEASE_SECONDS = 2.0
"""Seconds of a lease: a new process is in the list of workers after a third of it, and can be killed only then."""


def run(table: Table, *, quick: bool) -> None:
    with Server() as server, server.client() as client:
        for method, kills in METHODS.items():
            client.flushall()
            _children(table, server, client, method, 20 if quick else kills)
        _whole_worker(table, server, client)


def _children(table: Table, server: Server, client: Redis, method: str, kills: int) -> None:
    queue = FairQueue(client)
    chance = random.Random(1)
    pushed: list[str] = []
    back: list[float] = []
    killed = 0
    with worker(
        server, *("--processes", "2", "--concurrency", "4"), *("--start-method", method), lease=LEASE_SECONDS
    ) as process:
        wait_for_workers(queue, 2)
        supervisor = psutil.Process(process.pid)
        while killed < kills:
            if queue.get_stats().states["queued"] < 400:
                made = [
                    Task.create(f"u{i % 7}", 3, {"args": [0.005], "kwargs": {}}, name="bench.busy") for i in range(800)
                ]
                pushed += [result.task_id for result in queue.push_batch(made)]
            time.sleep(chance.uniform(0.05, 0.2))
            leased = [
                record for record in queue.workers() if record.leases and "child" in record.info.get("role", "child")
            ]
            victims = {int(record.info["pid"]): record.worker for record in leased if record.info.get("pid")}
            children = [child.pid for child in supervisor.children(recursive=True) if child.pid in victims]
            if not children:
                continue
            pid = chance.choice(children)
            key = f"fq:{{default:0}}:leases:{victims[pid]}"
            held = client.smembers(key)
            if not held:
                continue
            os.kill(pid, signal.SIGKILL)
            at = time.monotonic()
            wait_until(lambda key=key: not client.exists(key))  # type: ignore[misc]
            back.append(time.monotonic() - at)
            killed += 1
        wait_until(lambda: _open(queue) == 0, 300)
    tasks = all_tasks(queue)
    lost = [task_id for task_id in pushed if task_id not in tasks or not tasks[task_id].state.is_ended]
    dead = queue.dlq.count()
    unexplained = 0
    for task in tasks.values():
        if task.delivery > 1:
            unexplained += not EXPLAINED.intersection(attempt.kind for attempt in queue.history(task.task_id))
    back.sort()
    table.add(f"children killed under load ({method})", killed, "", str(METHODS[method]))
    table.add("tasks pushed", len(pushed))
    table.add("tasks lost", len(lost), "", "0")
    table.add("dead letters (killed 5 times over)", dead)
    table.add("second starts without a recorded reason", unexplained, "", "0")
    table.add("given back after a kill, p50", back[len(back) // 2], "s")
    table.add("given back after a kill, p99", back[int(len(back) * 0.99) - 1], "s", "≤ 1")
    table.add("violations afterwards", len(queue.check_invariants()), "", "0")


def _open(queue: FairQueue) -> int:
    states = queue.get_stats().states
    return states["queued"] + states["started"] + states["scheduled"]


def _whole_worker(table: Table, server: Server, client: Redis) -> None:
    """The supervisor dies too: what it had is back when the lease has ended."""
    client.flushall()
    queue = FairQueue(client)
    lease = 5.0
    queue.push_batch([Task.create("a", 3, {"args": [0.5], "kwargs": {}}, name="bench.busy") for _ in range(20)])
    with worker(server, "--processes", "1", "--concurrency", "2", lease=lease) as process:
        wait_until(lambda: queue.get_stats().states["started"] >= 2)
        process.kill()
        process.wait()
        at = time.monotonic()
    with worker(server, "--processes", "2", lease=lease):
        wait_until(
            lambda: any(
                attempt.kind == "lease_ended" for task_id in all_tasks(queue) for attempt in queue.history(task_id)
            )
        )
        table.add("worker killed whole: back after", time.monotonic() - at, "s", f"≤ {lease:.0f} + 2")
        wait_until(lambda: _open(queue) == 0)
    table.add("violations afterwards", len(queue.check_invariants()), "", "0")
