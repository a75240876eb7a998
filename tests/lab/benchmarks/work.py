"""Tasks that do something, with as many slots in each queue: what part of the possible rate ours and the peers reach.

Each queue runs the same code (`peers.counting`), in one process, over TCP. A task writes when it ends; the rate is that of the
middle, in which all slots are occupied. Tasks with database work need PostgreSQL:
``python -m tests.tools.postgres python -m tests.lab.benchmarks work``.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server
from tests.topologies import free_port

from .peers import ENVIRONMENTS, OURS, PATIENCE_SECONDS, SETTLING_SECONDS, Peer, PeerError
from .peers.counting import Runs, payload_of
from .peers.systems import PEERS
from .processes import wait_until, worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from .table import Table

BY_DEFAULT = ("huey", "dramatiq", "celery", "mayu", "taskiq", "ardiq", "streaq")
OURS_ASYNC = f"{OURS}, AsyncWorker"
OVER_THE_BEST = "ours over the best peer"
MOST_TASKS, LEAST_ROUNDS_OF_SLOTS = 20_000, 6
SECONDS = 3.0
"""The seconds that the tasks would take at the highest possible rate."""


@dataclass(frozen=True)
class Kind:
    """Tasks of one kind.

    Attributes:
        name: how the table names them.
        work: what each does, as `peers.counting` reads it.
        slots: how many of them run at the same time.
        ideal: the possible rate: tasks a second if a queue had no cost; None if it is not known.
        coroutines: only queues that run coroutines have a figure.
    """

    name: str
    work: str
    slots: int
    ideal: float | None
    coroutines: bool = False

    @classmethod
    def sleep(cls, seconds: float, slots: int, *, coroutines: bool = False) -> Kind:
        what = f"{slots:,} {'coroutines' if coroutines else 'slots'}, tasks that wait {seconds * 1000:,g} ms"
        return cls(what, f"sleep {seconds}", slots, slots / seconds, coroutines)

    @classmethod
    def compute(cls, seconds: float) -> Kind:
        return cls(f"8 slots, tasks that compute for {seconds * 1000:g} ms", f"compute {seconds}", 8, 1 / seconds)

    def tasks(self, name: str) -> int:
        """Return the number of tasks that are sent to this queue."""
        most = PEERS[name].tasks if name in PEERS else MOST_TASKS
        wanted = round(SECONDS * self.ideal) if self.ideal else most
        return max(LEAST_ROUNDS_OF_SLOTS * self.slots, min(wanted, most))

    def names(self, peers: Sequence[str]) -> list[str]:
        """The queues that have a figure: ours and those of the peers."""
        if self.coroutines:
            return [OURS, OURS_ASYNC, *(name for name in peers if PEERS[name].coroutines)]
        return [OURS, *peers]


KINDS = [
    *(Kind.sleep(seconds, 8) for seconds in (0.001, 0.01, 0.1)),
    *(Kind.compute(seconds) for seconds in (0.001, 0.01)),
    Kind("8 slots, tasks that insert a row and select it", "database", 8, None),
    Kind.sleep(0.1, 100, coroutines=True),
    Kind.sleep(0.1, 1000, coroutines=True),
    Kind.sleep(1, 1000, coroutines=True),
]


def rate(ends: Sequence[float], slots: int) -> float:
    """Tasks a second, from when the first tenth of the tasks and each slot's first have ended, until slots become free.

    Args:
        ends: when each task ended, in order.
        slots: how many run at the same time. Where they end together, whole rounds of them are counted.
    """
    first = max(slots, len(ends) // 10)
    rounds = (len(ends) - slots - first) // slots
    return rounds * slots / (ends[first + rounds * slots] - ends[first])


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 5) -> None:
    """Measure each kind of tasks with ours and the peers, and add their rates to ``table``.

    Args:
        table: where the figures go; its details have the versions of the peers, or why one has no figure.
        quick: one round.
        only: names of peers; by default some that are fast or widely used.
        rounds: how often each is measured, if not quick.
    """
    kinds = [kind for kind in KINDS if kind.work != "database" or "PGHOST" in os.environ]
    measure(table, kinds, list(only or BY_DEFAULT), 1 if quick else rounds)


def measure(table: Table, kinds: Sequence[Kind], peers: Sequence[str], rounds: int) -> None:
    """Measure tasks of these ``kinds`` with ours and the ``peers``, in turn, and add their rates to ``table``."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    port = free_port()
    found: dict[tuple[Kind, str], list[float]] = defaultdict(list)
    with Server("--port", str(port)) as server, server.client() as client:
        for _, kind in itertools.product(range(rounds), kinds):
            for name in kind.names(peers):
                client.flushall()
                try:
                    ends = _ends(name, kind, server, client, f"redis://127.0.0.1:{port}")
                    found[kind, name].append(rate(ends, kind.slots))
                except PeerError as error:
                    table.details.setdefault(name, {})[kind.name] = str(error)
                    print(f"{name}, {kind.name}: {error}", file=sys.stderr)
        for name in peers:
            table.details.setdefault(name, {}).update(Peer(name, server, 0).versions())
    for kind in kinds:
        _add(table, kind, {name: found[kind, name] for name in kind.names(peers) if found[kind, name]})


def _add(table: Table, kind: Kind, found: dict[str, list[float]]) -> None:
    if kind.ideal:
        table.add(f"{kind.name}: possible", kind.ideal, "/s")
    medians = {name: table.add(f"{kind.name}: {name}", values, "/s") for name, values in found.items()}
    peers = {name: median for name, median in medians.items() if name in PEERS}
    if peers:
        best = max(peers, key=lambda name: peers[name])
        ours = max(median for name, median in medians.items() if name not in PEERS)
        table.add(f"{kind.name}: {OVER_THE_BEST}", ours / peers[best], "×", f"{best}; ≥ 0.98 ×")


def _ends(name: str, kind: Kind, server: Server, client: Redis, url: str) -> list[float]:
    """When each of these tasks ended, in order."""
    tasks = kind.tasks(name)
    if kind.work == "database":
        _make_table()
    if name in PEERS:
        return Peer(name, server, tasks, url, work=kind.work, slots=kind.slots).ends()
    file = ENVIRONMENTS / f"{OURS}.runs"
    Runs.create(file, tasks)
    runs, queue = Runs(str(file), tasks), FairQueue(client)
    task = "bench.acount" if kind.coroutines else "bench.count"
    payloads = ({"args": [payload_of(number)], "kwargs": {}} for number in range(tasks))
    queue.push_batch([Task.create(f"u{i % 20}", 3, payload, name=task) for i, payload in enumerate(payloads)])
    variables = {
        "BENCH_TASKS": str(tasks),
        "BENCH_RUNS": str(file),
        "BENCH_SLOTS": str(kind.slots),
        "BENCH_WORK": kind.work,
    }
    arguments = ["--concurrency", str(kind.slots)]
    program = ["django", "fairque_worker"]
    if name == OURS_ASYNC:
        arguments, program = [], ["tests.lab.benchmarks.project.async_worker"]
    with worker(server, *arguments, url=url, program=program, variables=variables):
        wait_until(lambda: not runs.counts.count(0), PATIENCE_SECONDS)
        time.sleep(SETTLING_SECONDS)
    if (total := sum(runs.counts)) != tasks:
        raise PeerError(f"ran {total} tasks, expected {tasks}")
    return runs.ends


def _make_table() -> None:
    import psycopg

    with closing(psycopg.connect("dbname=postgres", autocommit=True)) as connection:
        connection.execute("DROP TABLE IF EXISTS rows")
        connection.execute("CREATE TABLE rows (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)")
