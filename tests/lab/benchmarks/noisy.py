"""The wait of a customer's single task behind another customer's backlog: served fairly, and first come, first served.

Both runs have the same worker, the same tasks and the same times of arrival. In the second run all tasks belong to one user.
Tasks of one user and one priority start in the order of their arrival, so that run is a first-come-first-served queue.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .processes import wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from redis import Redis

    from .table import Table

CUSTOMERS = 8
TASK_SECONDS = 0.01
SLOTS = 8


def run(table: Table, *, quick: bool) -> None:
    backlog, interval = (2_000, 0.25) if quick else (10_000, 1.0)
    with Server() as server, server.client() as client:
        for order, shared_user in (("fair", None), ("first come, first served", "everyone")):
            waits, took = measure(server, client, backlog, interval, shared_user)
            table.add(f"wait of a single task behind {backlog:,} tasks, {order}", [wait * 1000 for wait in waits], "ms")
            table.add(f"until all tasks have ended, {order}", took, "s")


def measure(
    server: Server, client: Redis, backlog: int, interval: float, shared_user: str | None
) -> tuple[list[float], float]:
    """Run the backlog of one customer, and a single task of each other customer.

    Args:
        server: the server of the queue; its data is deleted.
        client: a connection to it.
        backlog: number of tasks of the first customer, of 10 ms each.
        interval: seconds between two single tasks.
        shared_user: the user of all tasks; None for a user for each customer.

    Returns:
        The seconds from before each single task is made to its start, in the order of arrival; and the seconds until
        all tasks have ended.
    """
    client.flushall()
    queue = FairQueue(client)
    queue.pause()
    sleep = {"args": [TASK_SECONDS], "kwargs": {}}
    queue.push_batch([Task.create(shared_user or "noisy", 3, sleep, name="bench.sleep") for _ in range(backlog)])
    with worker(server, "--processes", "1", "--concurrency", str(SLOTS)):
        wait_for_workers(queue)
        began = time.monotonic()
        queue.resume()
        singles = []
        for customer in range(1, CUSTOMERS + 1):
            time.sleep(max(0.0, began + customer * interval - time.monotonic()))
            stamp = {"args": [time.time()], "kwargs": {}}
            singles.append(Task.create(shared_user or f"customer {customer}", 3, stamp, name="bench.stamp"))
            queue.push(singles[-1])
        wait_until(lambda: queue.get_stats().states["finished"] >= backlog + CUSTOMERS)
        took = time.monotonic() - began
    return [queue.get_task(single.task_id).result for single in singles], took
