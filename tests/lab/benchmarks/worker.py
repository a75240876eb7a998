"""The worker end to end: tasks a second, idle to start, an idle worker's commands, a light user's wait."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .processes import Drain, cpu_seconds, wait_for_workers, wait_until, worker

if TYPE_CHECKING:
    from redis import Redis

    from .table import Table

NOT_MEASURED = 0.1
"""Part of the tasks that run before the time counts: not all processes have started, or know how many tasks to fetch."""
PAYLOAD = {"args": ["x" * 180], "kwargs": {}}
WORK = {"args": [10_000], "kwargs": {}}


def drain(server: Server, client: Redis, processes: int, tasks: int, *, works: bool = False, url: str = "") -> Drain:
    """Run tasks of 20 users with one ``fairque_worker``: no-op ones, or some that work."""
    client.flushall()
    queue = FairQueue(client)
    queue.pause()
    queue.push_batch(make_tasks(tasks, 20, works=works))
    return drain_paused(server, client, queue, processes, tasks, url=url)


def make_tasks(count: int, users: int, *, works: bool = False) -> list[Task]:
    name, payload = ("bench.work", WORK) if works else ("bench.noop", PAYLOAD)
    return [Task.create(f"u{i % users}", 3, payload, name=name) for i in range(count)]


def drain_paused(
    server: Server, client: Redis, queue: FairQueue, processes: int, tasks: int, *, url: str = ""
) -> Drain:
    """Run the tasks of a paused queue with one ``fairque_worker``. As of a peer, the first tenth is not measured."""
    polls = 0

    def finished() -> int:
        nonlocal polls
        polls += 1
        return int(client.zcard("fq:{default:0}:state:finished"))

    def count_commands() -> int:
        return sum(int(command["calls"]) for command in client.info("commandstats").values()) - polls

    with worker(server, "--processes", str(processes), url=url) as process:
        wait_for_workers(queue, processes)
        queue.resume()
        wait_until(lambda: finished() >= NOT_MEASURED * tasks)
        commands, left, started = count_commands(), tasks - finished(), time.perf_counter()
        workers, servers = cpu_seconds([process.pid]), cpu_seconds([server.pid])
        wait_until(lambda: finished() >= tasks)
        seconds = time.perf_counter() - started
        workers, servers = cpu_seconds([process.pid]) - workers, cpu_seconds([server.pid]) - servers
        return Drain(left, seconds, workers, servers, count_commands() - commands)


def run(table: Table, *, quick: bool) -> None:
    tasks, rounds = (10_000, 2) if quick else (30_000, 3)
    with Server() as server, server.client() as client:
        for works, what in ((False, "no-op tasks"), (True, "tasks of half a millisecond of Python")):
            one, two = (
                table.add(
                    f"{what}, {number} process{'es' * (number > 1)}",
                    [
                        drain(server, client, number, tasks // (3 if works else 1), works=works).rate
                        for _ in range(rounds)
                    ],
                    "/s",
                )
                for number in (1, 2)
            )
            table.add("  two processes over one", two / one, "×", "≥ 1.7 ×")
        _idle(table, server, client, 50 if quick else 200)
        _light_user(table, server, client, 4_000 if quick else 20_000)


def idle_to_start(queue: FairQueue, trials: int, apart: float) -> list[float]:
    """Return the sorted milliseconds from creation to start of tasks that are pushed while all processes are idle."""
    sent = []
    for _ in range(trials):
        time.sleep(apart)
        sent.append(Task.create("a", 3, {"args": [time.time()], "kwargs": {}}, name="bench.stamp"))
        queue.push(sent[-1])
    wait_until(lambda: queue.get_task(sent[-1].task_id).state.is_ended)
    return sorted(queue.get_task(task.task_id).result * 1000 for task in sent)


def _idle(table: Table, server: Server, client: Redis, trials: int) -> None:
    client.flushall()
    queue = FairQueue(client)
    with worker(server):
        wait_for_workers(queue)
        waits = idle_to_start(queue, trials, 0.03)
        table.add("idle to start, p50", statistics.median(waits), "ms", "≤ 1.2")
        table.add("idle to start, p99", waits[int(len(waits) * 0.99) - 1], "ms", "≤ 3")
        time.sleep(2)
        client.config_resetstat()
        time.sleep(10)
        stats = client.info("commandstats")
        calls = sum(
            stats.get(f"cmdstat_{name}", {}).get("calls", 0)
            for name in ("fcall", "evalsha", "eval", "bzpopmin", "ping")
        )
        table.add("an idle worker's calls per second", calls / 10, "", "≤ 2")


def _light_user(table: Table, server: Server, client: Redis, backlog: int) -> None:
    """The wait of a user's single 1 ms task, alone and behind another user's backlog of them."""
    payload = {"args": [0.001], "kwargs": {}}

    def wait(queue: FairQueue) -> float:
        task = Task.create("light", 3, payload, name="bench.sleep")
        queue.push(task)
        wait_until(lambda: queue.get_task(task.task_id).state.is_ended)
        ended = queue.get_task(task.task_id)
        return ((ended.started_at or 0) - (ended.ready_at or 0)) + ((ended.ended_at or 0) - (ended.started_at or 0))

    client.flushall()
    queue = FairQueue(client)
    with worker(server):
        wait_for_workers(queue)
        alone = statistics.median(wait(queue) for _ in range(30))
        queue.push_batch([Task.create("heavy", 3, payload, name="bench.sleep") for _ in range(backlog)])
        behind = statistics.median(wait(queue) for _ in range(30))
    table.add("light user, push to end, alone", alone * 1000, "ms")
    table.add(f"light user behind {backlog:,} tasks over alone", behind / alone, "×", "≤ 4 ×")
