"""Measures the wait of other tasks while some tasks kill their process: twenty seconds with such tasks and twenty
seconds without, by turns, so that other load on the machine affects both alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .processes import wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Table

PROCESSES = 3
PHASE = 20.0
"""Seconds."""
RATE = 200
"""Others' tasks a second, of 5 ms each: a third of the slots, so that what waits does so for a reason."""
EVERY = {"one each 10 s": 10.0, "one a second": 1.0}
"""Seconds between two poisoned tasks; each ends as many processes as `MAX_DELIVERIES` allows, 5."""


def run(table: Table, *, quick: bool) -> None:
    for method in ("forkserver", "spawn"):
        for often, every in EVERY.items():
            _compare(table, method, often, every, 1 if quick else 4, PHASE / (4 if quick else 1))


def _compare(table: Table, method: str, often: str, every: float, pairs: int, phase: float) -> None:
    with Server() as server, server.client() as client:
        queue = FairQueue(client)
        words = ("--processes", str(PROCESSES), "--concurrency", "4", "--start-method", method)
        with worker(server, *words):
            wait_for_workers(queue, PROCESSES)
            _waits(queue, phase / 3)  # the first tasks have started
            calm: list[list[float]] = []
            poisoned: list[list[float]] = []
            for number in range(pairs):
                # Whatever grows or comes in between meets one as often first as the other.
                for waits, interval in ((calm, None), (poisoned, every))[:: 1 if number % 2 else -1]:
                    waits.append(_waits(queue, phase, interval))
            dead = queue.dlq.count()
    table.add(f"waits' p95 without poison ({method})", [_p95(some) * 1e3 for some in calm], "ms")
    table.add(f"  with {often}", [_p95(some) * 1e3 for some in poisoned], "ms")
    table.add("  poisoned", dead)
    together = [_p95([wait for some in all_of_it for wait in some]) for all_of_it in (calm, poisoned)]
    table.add("  over all of it, with poison over without", together[1] / together[0], "×", "≤ 1.1 ×")


def _waits(queue: FairQueue, phase: float, poison_every: float | None = None) -> list[float]:
    """Seconds from push to start, to the last start of those that began twice, of the others' tasks."""
    began = time.monotonic()
    pushed: list[str] = []
    next_poison = began if poison_every is not None else float("inf")
    for number in range(round(phase * RATE)):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        if poison_every is not None and time.monotonic() >= next_poison:
            queue.push(Task.create("poisoner", 3, {"args": [], "kwargs": {}}, name="bench.poison"))
            next_poison += poison_every
        task = Task.create(f"u{number % 7}", 3, {"args": [0.005], "kwargs": {}}, name="bench.sleep")
        pushed.append(queue.push(task).task_id)
    wait_until(lambda: not any(queue.get_stats().states[state] for state in ("queued", "started", "scheduled")))
    tasks = [queue.get_task(task_id) for task_id in pushed]
    return [task.started_at - task.created_at for task in tasks if task.started_at is not None]


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]
