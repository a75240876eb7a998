"""One server and two, each with a shard of the queue and a worker process: tasks a second, and for a second of a server's core.

With at least 2k + 2 cores, each of k servers has a core for itself, and workers have the rest. On fewer cores all servers are on
the first core and the workers on the others. The rate says nothing of k servers then; the servers' time for each task counts.
Commands are counted, too, because other load on the machine does not change them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from django_fairque.conf import RedisConfig
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server

from .processes import Drain, cpu_seconds, wait_for_workers, wait_until, worker
from .worker import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .table import Table

LASTING = ("--appendonly", "yes", "--appendfsync", "everysec")
OWN_COMMANDS = ("zcard", "config|resetstat", "hello", "info", "client|setinfo")
"""Commands that the benchmark itself sends to the servers while tasks run."""


@dataclass(frozen=True)
class Kind:
    """A kind of measured tasks: name, payload and number of users."""

    name: str
    payload: dict[str, Any]
    users: int


NOOP = Kind("bench.noop", PAYLOAD, 20)
MANY_USERS = Kind("bench.noop", PAYLOAD, 10_000)
SHORT = Kind("bench.work", {"args": [6_000], "kwargs": {}}, 20)
"""About 0.3 ms of Python."""


@dataclass(frozen=True)
class Run:
    """The cost of running the tasks, and the processor time of pushing one of them in bulk, in microseconds."""

    drain: Drain
    push_server_us: float
    push_client_us: float
    commands: float
    """Commands that the servers ran to fetch and finish each task."""


def has_enough_cores(servers: int) -> bool:
    """Whether the rate with this number of servers can be verified here."""
    return (psutil.cpu_count() or 1) >= 2 * servers + 2


def pin(pid: int, cores: Sequence[int]) -> None:
    """Let a process and all that it has started run on these cores only, where the system can do that."""
    parent = psutil.Process(pid)
    if hasattr(parent, "cpu_affinity"):
        for process in (parent, *parent.children(recursive=True)):
            process.cpu_affinity(list(cores))


def run_tasks(servers: Sequence[Server], processes: int, tasks: int, kind: Kind, *, shares_core: bool = False) -> Run:
    """Run tasks with one ``fairque_worker``, and measure from when it resumes until the last task has ended.

    With ``shares_core`` its processes may run on the servers' core, too.
    """
    for server in servers:
        with server.client() as client:
            client.flushall()
    pids, cores = [server.pid for server in servers], range(psutil.cpu_count() or 1)
    alone = has_enough_cores(len(servers))
    for number, pid in enumerate(pids):
        pin(pid, [number if alone else 0])
    urls = [server.url for server in servers]
    with RedisConfig.model_validate({"url": urls}).create_redis_client() as client:
        queue = FairQueue(client, config=QueueConfig(shards=len(servers)))
        queue.pause()
        made = [Task.create(f"u{i % kind.users}", 3, kind.payload, name=kind.name) for i in range(tasks)]
        at_servers, here = cpu_seconds(pids), time.process_time()
        queue.push_batch(made)
        at_servers, here = cpu_seconds(pids) - at_servers, time.process_time() - here
        with worker(servers[0], "--processes", str(processes), url=" ".join(urls)) as process:
            wait_for_workers(queue, processes)
            pin(process.pid, cores if shares_core else cores[len(servers) if alone else 1 :])
            for server in servers:
                with server.client() as connection:
                    connection.config_resetstat()
            of_workers, of_servers = cpu_seconds([process.pid]), cpu_seconds(pids)
            started = time.perf_counter()
            queue.resume()
            wait_until(lambda: _finished(servers) >= tasks)
            seconds = time.perf_counter() - started
            of_workers, of_servers = cpu_seconds([process.pid]) - of_workers, cpu_seconds(pids) - of_servers
            commands = sum(map(_count_commands, servers)) / tasks
    drain = Drain(tasks, seconds, of_workers, of_servers)
    return Run(drain, at_servers * 1e6 / tasks, here * 1e6 / tasks, commands)


def _finished(servers: Sequence[Server]) -> int:
    found = 0
    for number, server in enumerate(servers):
        with server.client() as client:
            found += int(client.zcard(f"fq:{{default:{number}}}:state:finished"))
    return found


def _count_commands(server: Server) -> int:
    with server.client() as client:
        stats = client.info("commandstats").items()
    return sum(stat["calls"] for name, stat in stats if name.removeprefix("cmdstat_") not in OWN_COMMANDS)


def run(table: Table, *, quick: bool) -> None:
    tasks, rounds = (10_000, 2) if quick else (20_000, 5)
    with ExitStack() as stack:
        both = [stack.enter_context(Server()) for _ in range(2)]
        lasting = [stack.enter_context(Server(*LASTING)) for _ in range(2)]
        _servers(table, "no-op tasks of 20 users", both, tasks, rounds, NOOP)
        _servers(table, "no-op tasks of 10,000 users, with an append-only file", lasting, tasks, rounds, MANY_USERS)
        _processes(table, both[:1], tasks // 3, rounds)


def _servers(table: Table, what: str, both: Sequence[Server], tasks: int, rounds: int, kind: Kind) -> None:
    """One server and two, in turns."""
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for _ in range(rounds):
        for number, found in runs.items():
            found.append(run_tasks(both[:number], number, tasks, kind))
    per_core, commands, rates = {}, {}, {}
    for number, found in runs.items():
        drains = [run.drain for run in found]
        name = f"{what}, {number} server{'s' * (number > 1)}"
        rates[number] = table.add(name, [drain.rate for drain in drains], "/s")
        per_core[number] = table.add(
            "  tasks for a second of a server's core", [1e6 / drain.server_us for drain in drains]
        )
        table.add("  the servers' time for a task", [drain.server_us for drain in drains], "µs")
        table.add("  the workers' time for a task", [drain.worker_us for drain in drains], "µs")
        commands[number] = table.add("  commands for a task", [run.commands for run in found])
        table.add("  the servers' time to push a task in bulk", [run.push_server_us for run in found], "µs")
        table.add("  the client's time to push a task in bulk", [run.push_client_us for run in found], "µs")
    table.add("  commands for a task, two servers over one", commands[2] / commands[1], "×", "≤ 1.1 ×")
    table.add("  tasks for a second of a core, two servers over one", per_core[2] / per_core[1], "×", "≥ 0.9 ×")
    if has_enough_cores(2):
        table.add("  two servers over one", rates[2] / rates[1], "×", "≥ 1.8 ×")
    else:
        unverified = f"unverified: {psutil.cpu_count()} cores, 6 are needed"
        table.row("  two servers over one", unverified, target="≥ 1.8 ×")


def _processes(table: Table, servers: Sequence[Server], tasks: int, rounds: int) -> None:
    """One and two worker processes on a server whose core is not full."""
    runs: dict[int, list[Drain]] = {1: [], 2: []}
    shares_core = not has_enough_cores(1)
    for _ in range(rounds):
        for processes, found in runs.items():
            done = run_tasks(servers, processes, tasks, SHORT, shares_core=shares_core and processes > 1)
            found.append(done.drain)
    workers, rates = {}, {}
    for processes, found in runs.items():
        name = f"tasks of 0.3 ms of Python, {processes} worker process{'es' * (processes > 1)}"
        rates[processes] = table.add(name, [drain.rate for drain in found], "/s")
        workers[processes] = table.add("  the workers' time for a task", [drain.worker_us for drain in found], "µs")
        table.add("  the server's time for a task", [drain.server_us for drain in found], "µs")
        table.add("  of the server's core in use", [100 * drain.server_cpu / drain.seconds for drain in found], "%")
    table.add("  the workers' time for a task, two processes over one", workers[2] / workers[1], "×", "≤ 1.1 ×")
    target = "≥ 1.7 ×: unverified, 4 cores are needed" if shares_core else "≥ 1.7 ×"
    table.add("  two processes over one", rates[2] / rates[1], "×", target)
