"""Many users with few tasks each, which fairness is for, and one user with all tasks, each with peers in the same rounds.

A round pushes no-op tasks in bulk, and runs them with one and with two worker processes, over TCP, also with an append-only
file. Separate processes push single tasks, ours signed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server
from tests.topologies import free_port

from .peers import ENVIRONMENTS, OURS, Peer, PeerError
from .peers.systems import PEERS
from .processes import ROOT
from .pushing import Processor
from .worker import drain_paused, make_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

    from .table import Table

TASKS = 20_000
SINGLE_PUSHES = 3_000
RUNNERS = ("ardiq", "mayu")
"""The fastest peers."""
PUSHERS = ("dramatiq", "ardiq")
BULK_PUSHERS = ("ardiq",)
RATES = {1: "tasks/s, one worker process", 2: "tasks/s, two worker processes"}
PUSH_RATE, BULK_RATE = "single push/s", "bulk push/s"
SERVER_TIME, BULK_SERVER_TIME = "server, fetch and finish", "server, push in bulk"
DURABLE_SERVER_TIME = "server, fetch and finish, append-only file"
COMMANDS, PUSH_TIME, BYTES = "server commands, fetch and finish", "producer, single push", "memory of a user, all keys"
UNITS = {
    **dict.fromkeys(RATES.values(), "/s"),
    SERVER_TIME: "µs",
    COMMANDS: "",
    BULK_SERVER_TIME: "µs",
    DURABLE_SERVER_TIME: "µs",
    BULK_RATE: "/s",
    PUSH_RATE: "/s",
    PUSH_TIME: "µs",
    BYTES: "bytes",
}
"""The figures of a queue, and their units."""
RATIOS = (*RATES.values(), BULK_RATE, PUSH_RATE)
"""The figures that are compared with each peer's, round by round."""


@dataclass(frozen=True)
class Load:
    """The tasks of a round: their number, and the number of their users."""

    users: int
    tasks: int

    @property
    def name(self) -> str:
        if self.users == 1:
            return f"one user, {self.tasks:,} tasks"
        return f"{self.users:,} users, {self.tasks // self.users} tasks each"


Found = dict[tuple[str, str], list[float]]
"""The values of each figure, one for each round, by the names of the operation and of the figure."""


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 5) -> None:
    """Measure ours and the fastest peers, and add their figures to ``table``.

    Args:
        table: where the figures go; its details have the versions of the peers.
        quick: one round of fewer tasks.
        only: names of peers; by default those that are fastest at something.
        rounds: how often each is measured, if not quick.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    tasks = TASKS // 10 if quick else TASKS
    loads, peers = [Load(tasks // 2, tasks), Load(1, tasks)], list(only or dict.fromkeys(RUNNERS + PUSHERS))
    found: Found = defaultdict(list)
    port, durable_port = free_port(), free_port()
    persistence = ("--appendonly", "yes", "--appendfsync", "everysec")
    with Server("--port", str(port)) as server, Server("--port", str(durable_port), *persistence) as durable:
        for _ in range(1 if quick else rounds):
            for load in loads:
                with server.client() as client:
                    _measure_ours(found, load, server, client, f"redis://127.0.0.1:{port}")
                with durable.client() as client:
                    queue = _push(found, load, durable, client, counts=False)
                    drained = drain_paused(durable, client, queue, 1, tasks, url=f"redis://127.0.0.1:{durable_port}")
                    found[load.name, DURABLE_SERVER_TIME].append(drained.server_us)
                    client.flushall()
            with server.client() as client:
                for name in tuple(peers):
                    try:
                        _measure_peer(found, name, server, client, f"redis://127.0.0.1:{port}", tasks)
                    except PeerError as error:  # noqa: PERF203 - there are a few peers
                        peers.remove(name)
                        table.details[name] = {"missing": str(error)}
                        print(f"{name}: {error}", file=sys.stderr)
                _measure_singles(found, loads, peers, server, client, f"redis://127.0.0.1:{port}")
        for name in peers:
            table.details[name] = Peer(name, server, 0).versions()
    add_figures(
        table, {key: values for key, values in found.items() if key[0] in {*peers, *(load.name for load in loads)}}
    )


def _measure_ours(found: Found, load: Load, server: Server, client: Redis, url: str) -> None:
    for processes in RATES:
        queue = _push(found, load, server, client, counts=processes == 1)
        drained = drain_paused(server, client, queue, processes, load.tasks, url=url)
        found[load.name, RATES[processes]].append(drained.rate)
        if processes == 1:
            found[load.name, SERVER_TIME].append(drained.server_us)
            found[load.name, COMMANDS].append(drained.commands / drained.tasks)


def _push(found: Found, load: Load, server: Server, client: Redis, *, counts: bool) -> FairQueue:
    """Push the tasks in bulk into an empty, paused queue, and keep the figures of that if it ``counts``."""
    client.flushall()
    queue = FairQueue(client)
    queue.pause()
    busy, before = Processor(server.pid), client.info("memory")["used_memory"]
    seconds = busy.add(lambda: queue.push_batch(make_tasks(load.tasks, load.users)))
    if counts:
        found[load.name, BULK_RATE].append(load.tasks / seconds)
        found[load.name, BULK_SERVER_TIME].append(busy.server / load.tasks * 1e6)
    if counts and load.users > 1:
        found[load.name, BYTES].append((client.info("memory")["used_memory"] - before) / load.users)
    return queue


def push_singles(users: int, url: str) -> tuple[float, float]:
    """Send tasks of these ``users`` one by one from another process. Return the seconds of one, and the producer's processor
    time for it."""
    result = ENVIRONMENTS / f"{OURS}.result"
    variables = {
        "DJANGO_SETTINGS_MODULE": "tests.lab.benchmarks.project.settings",
        "BENCHMARK_SERVER": url,
        "BENCH_TASKS": str(SINGLE_PUSHES),
        "BENCH_USERS": str(users),
        "BENCH_RESULT": str(result),
    }
    program = [sys.executable, "-m", "tests.lab.benchmarks.project.producer", "timed"]
    subprocess.run(program, cwd=ROOT, env={**os.environ, **variables}, check=True)
    seconds, processor = json.loads(result.read_text())
    return seconds, processor


def _measure_peer(found: Found, name: str, server: Server, client: Redis, url: str, tasks: int) -> None:
    if name in RUNNERS:
        for processes in RATES:
            client.flushall()
            drained = Peer(name, server, tasks, url).drain(processes)
            found[name, RATES[processes]].append(drained.rate)
            if processes == 1:
                found[name, SERVER_TIME].append(drained.server_us)
    if name in BULK_PUSHERS:
        client.flushall()
        found[name, BULK_RATE].append(1 / Peer(name, server, tasks, url).push_times("timed_bulk")[0])


def _measure_singles(
    found: Found, loads: Sequence[Load], peers: Sequence[str], server: Server, client: Redis, url: str
) -> None:
    """One after the other, so that all of them meet the same load of the machine."""
    times: dict[str, Callable[[], tuple[float, float]]]
    times = {load.name: partial(push_singles, load.users, url) for load in loads}
    times |= {name: Peer(name, server, SINGLE_PUSHES, url).push_times for name in peers if name in PUSHERS}
    for name, push in times.items():
        client.flushall()
        seconds, processor = push()
        found[name, PUSH_RATE].append(1 / seconds)
        found[name, PUSH_TIME].append(processor * 1e6)
    client.flushall()


def add_figures(table: Table, found: Found) -> None:
    """Add the figures of all queues to the ``table``, and the ratios of ours to those of each peer."""
    names = list(dict.fromkeys(name for name, _ in found))
    for name in names:
        for figure, unit in UNITS.items():
            if values := found.get((name, figure)):
                table.add(f"{name}: {figure}", values, unit)
            for peer in names if name not in PEERS and figure in RATIOS else ():
                if peer in PEERS and (others := found.get((peer, figure))):
                    ratios = [mine / other for mine, other in zip(values or [], others, strict=True)]
                    table.add(f"  over {peer}", ratios, "×")
