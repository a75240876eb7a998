"""A nightly job for many customers, and urgent mails of the same customers: ours, and peers that run urgent tasks first.

Each queue has one worker with 8 slots (a peer that runs one task at a time has 8 processes) and runs the same tasks of 20 ms
(`peers.counting`), over TCP. Three runs: the job alone, the job with a mail each 200 ms, and one of four customers that marks
all of its tasks urgent. Each peer is configured as its documentation recommends (`peers.systems.Urgent`). Queues that store
tasks in a database need one: ``python -m tests.tools.postgres python -m tests.lab.benchmarks nightly``.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.servers import Server
from tests.topologies import free_port

from .peers import ENVIRONMENTS, OURS, SETTLING_SECONDS, Peer, PeerError
from .peers.counting import Runs, payload_of, send_mails
from .peers.systems import PEERS
from .processes import wait_until, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from redis import Redis

    from django_fairque.engine.model.lanes import Lane

    from .table import Table

TASK_SECONDS, SLOTS = 0.02, 8
CUSTOMERS = 2_000
"""The customers of the job, unless ``--customers`` names another number."""
BY_DEFAULT = ("celery", "rq", "huey", "dramatiq", "django-tasks-db")
"""Peers that are widely used. Also measured on request: each peer with a `systems.Urgent`."""
MOST_MAILS = 300
"""The mails of a job of `CUSTOMERS`: after a minute of mails the run ends, also if the job has not ended."""
URGENT_CUSTOMER_TASKS, OTHERS_TASKS, OTHERS = 1_200, 750, 3
"""The tasks of the customer that marks all of them urgent, and of each of three others."""
NOT_COUNTED = 900
"""The urgent customer's first tasks: with 8 slots and three others it has used the 10 s that it may borrow after about 750."""
PATIENCE_SECONDS = 60
LIMIT_SECONDS = 1_200
"""A further round begins only if it would end within this time, with `CUSTOMERS`; with more it is longer in proportion."""
OURS_NORMAL = f"{OURS}, all in lane normal"
WAIT_P50, WAIT_P99 = "wait of mails, p50", "wait of mails, p99"
JOB_ALONE, JOB_WITH_MAILS, LONGER = "job alone", "job with mails", "job with mails over alone"
OTHER_SHARE = "another customer's tasks for each task of one that marks all urgent"
NORMAL_OVER_URGENT = "lane normal over lane urgent, p99"


class Queue(Protocol):
    """One queue, whose tasks have numbers."""

    @property
    def runs(self) -> Runs:
        """The times and runs of its tasks."""

    def send(self, *arguments: str, empty: bool = True) -> None:
        """Send the tasks that the arguments name, as `peers.counting.send` reads them."""

    def workers(self, number: int, *without: str) -> AbstractContextManager[object]:
        """Start this number of worker processes."""


class Ours:
    """django_fairque on this server. ``lanes`` are those of normal and of urgent tasks, ``users`` is the number of customers."""

    def __init__(
        self,
        server: Server,
        client: Redis,
        tasks: int,
        url: str,
        *,
        users: int,
        lanes: tuple[Lane, Lane],
        held: int = 0,
    ) -> None:
        self._server, self._url, self._users = server, url, users
        self._normal_lane, self._urgent_lane = lanes
        self._queue, self._file = FairQueue(client), ENVIRONMENTS / f"{OURS}.runs"
        Runs.create(self._file, tasks)
        self.runs = Runs(str(self._file), tasks)
        self._variables = {
            "BENCH_TASKS": str(tasks),
            "BENCH_RUNS": str(self._file),
            "BENCH_WORK": f"sleep {TASK_SECONDS}",
            "BENCH_HELD": str(held),
        }

    def send(self, *arguments: str, empty: bool = True) -> None:
        kind, *numbers = arguments
        if kind == "mails":
            first, slots = map(int, numbers)
            send_mails(lambda payload: self._queue.push(self._task(payload, urgent=True)), self.runs, first, slots)
            return
        payloads = (payload_of(number) for number in range(*map(int, numbers)))
        self._queue.push_batch([self._task(payload, urgent=kind == "urgent") for payload in payloads])

    def workers(self, number: int, *without: str) -> AbstractContextManager[object]:
        arguments = ("--processes", str(number), "--concurrency", str(SLOTS))
        return worker(self._server, *arguments, url=self._url, variables=self._variables)

    def _task(self, payload: str, *, urgent: bool) -> Task:
        lane = self._urgent_lane if urgent else self._normal_lane
        call = {"args": [payload], "kwargs": {}}
        return Task.create(self._user(int(payload[:8]), urgent=urgent), 3, call, name="bench.count", lane=lane)

    def _user(self, number: int, *, urgent: bool) -> str:
        """Return the customer of a task: in the job one after the other, of a mail a different one each time."""
        if self._users > 1 + OTHERS:
            return f"customer {number * 1237 % self._users if urgent else number}"
        return "urgent customer" if urgent else f"customer {number % OTHERS}"


@dataclass(frozen=True)
class Night:
    """One run of the job: its seconds from when all slots are occupied, and the wait of each mail, in order, in milliseconds."""

    seconds: float
    waits: list[float]


def night(queue: Queue, customers: int, *, mails: bool, processes: int = 1) -> Night:
    """Run the job, and mails while it runs.

    Args:
        queue: runs them; its tasks with numbers below ``customers`` are the job, the others are mails.
        customers: number of tasks of the job.
        mails: whether mails are sent.
        processes: number of worker processes.

    Raises:
        PeerError: not each task ran exactly once.
    """
    runs = queue.runs
    queue.send("normal", "0", str(customers))
    with queue.workers(processes, "--burst"):
        if mails:
            queue.send("mails", str(customers), str(SLOTS), empty=False)
        sent = sum(map(bool, runs.sent))
        _wait_for(
            lambda: 0 not in runs.counts[: customers + sent], PATIENCE_SECONDS + 3 * customers * TASK_SECONDS / SLOTS
        )
        time.sleep(SETTLING_SECONDS)
    if (total := sum(runs.counts)) != customers + sent:
        raise PeerError(f"ran {total} tasks, expected {customers + sent}")
    waits = [(runs.started[number] - runs.sent[number]) * 1000 for number in range(customers, customers + sent)]
    return Night(max(runs.ended[:customers]) - max(runs.started[:SLOTS]), sorted(waits))


def other_share(queue: Queue, urgent: int, others: int, not_counted: int, processes: int = 1) -> float:
    """Return the number of tasks of another customer that start for each task of the customer that marks all of them urgent.

    Args:
        queue: runs them.
        urgent: number of urgent tasks.
        others: number of tasks of all others.
        not_counted: starts of urgent tasks before the others' starts count.
        processes: number of worker processes.
    """
    runs = queue.runs
    queue.send("urgent", "0", str(urgent))
    queue.send("normal", str(urgent), str(urgent + others), empty=False)
    with queue.workers(processes, "--burst"):
        _wait_for(lambda: all(runs.started[:urgent]))
    starts = sorted(runs.started[:urgent])
    started = [at for at in runs.started[urgent:] if starts[not_counted] < at <= starts[-1]]
    return len(started) / OTHERS / (urgent - 1 - not_counted)


def _wait_for(condition: Callable[[], bool], patience: float = PATIENCE_SECONDS) -> None:
    try:
        wait_until(condition, patience)
    except TimeoutError as error:
        raise PeerError(f"not all of its tasks ran in {patience:g} s") from error


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 3, customers: int = CUSTOMERS) -> None:
    """Measure ours and the peers, and add their figures to ``table``; its details have versions, or why one has no figures.

    Args:
        table: where the figures go.
        quick: one round of a tenth of the customers, without the customer that marks all of its tasks urgent.
        only: names of peers; by default those that are widely used.
        rounds: how often each is measured, if not quick, and if there is time for it.
        customers: number of tasks of the job, one of each customer.
    """
    customers = customers // 10 if quick else customers
    table.details["customers"] = customers
    limit = LIMIT_SECONDS * max(1, customers / CUSTOMERS)
    ENVIRONMENTS.mkdir(exist_ok=True)
    port, began, longest = free_port(), time.monotonic(), 0.0
    peers = [name for name in only or BY_DEFAULT if PEERS[name].urgent]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with Server("--port", str(port)) as server, server.client() as client:
        for _ in range(1 if quick else rounds):
            started = time.monotonic()
            if started - began + longest > limit:
                break
            names = [name for name in (OURS, OURS_NORMAL, *peers) if name not in table.details]
            for name in names:
                with_urgent_customer = not quick and name != OURS_NORMAL
                figures = _try_measuring(
                    table, name, server, client, f"redis://127.0.0.1:{port}", customers, urgent=with_urgent_customer
                )
                for figure, value in figures.items():
                    found[name][figure].append(value)
            longest = max(longest, time.monotonic() - started)
        for name in peers:
            if name not in table.details:
                table.details[name] = Peer(name, server, 0).versions()
    _add(table, {name: figures for name, figures in found.items() if "missing" not in table.details.get(name, {})})


def _try_measuring(
    table: Table, name: str, server: Server, client: Redis, url: str, customers: int, *, urgent: bool
) -> dict[str, float]:
    """Return the value of each figure in one round of ours or of a peer; none, and the reason in ``table``, if it has none."""
    try:
        return measure(name, server, client, url, customers, urgent=urgent)
    except PeerError as error:
        table.details[name] = {"missing": str(error)}
        print(f"{name}: {error}", file=sys.stderr)
        return {}


def measure(
    name: str, server: Server, client: Redis, url: str, customers: int = CUSTOMERS, *, urgent: bool = True
) -> dict[str, float]:
    """Return the value of each figure in one round of ours or of a peer."""
    most_mails = MOST_MAILS * max(1, customers // CUSTOMERS)
    processes = SLOTS if name in PEERS and PEERS[name].slots == 1 else 1

    def queue(tasks: int, *, users: int, held: int = 0) -> Queue:
        client.flushall()
        if name in PEERS:
            work = f"sleep {TASK_SECONDS}"
            return Peer(name, server, tasks, url, work=work, slots=SLOTS, urgent=PEERS[name].urgent, held=held)
        lanes: tuple[Lane, Lane] = (
            ("normal", "normal") if name == OURS_NORMAL else ("bulk" if held else "normal", "urgent")
        )
        return Ours(server, client, tasks, url, users=users, lanes=lanes, held=held)

    alone = night(queue(customers, users=customers, held=SLOTS), customers, mails=False, processes=processes)
    job = queue(customers + most_mails, users=customers, held=SLOTS)
    mailed = night(job, customers, mails=True, processes=processes)
    figures = {
        WAIT_P50: _percentile(mailed.waits, 0.5),
        WAIT_P99: _percentile(mailed.waits, 0.99),
        JOB_ALONE: alone.seconds,
        JOB_WITH_MAILS: mailed.seconds,
        LONGER: mailed.seconds / alone.seconds,
    }
    if urgent:
        others = OTHERS * OTHERS_TASKS
        hostile = queue(URGENT_CUSTOMER_TASKS + others, users=1 + OTHERS)
        figures[OTHER_SHARE] = other_share(hostile, URGENT_CUSTOMER_TASKS, others, NOT_COUNTED, processes)
    return figures


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[math.ceil(part * len(ordered)) - 1]


UNITS = {WAIT_P50: "ms", WAIT_P99: "ms", JOB_ALONE: "s", JOB_WITH_MAILS: "s", LONGER: "×", OTHER_SHARE: "×"}
TARGETS = {WAIT_P99: "≤ 300", LONGER: "≤ 1.02", OTHER_SHARE: "≥ 0.95"}


def _add(table: Table, found: dict[str, dict[str, list[float]]]) -> None:
    for name, figures in found.items():
        for figure, values in figures.items():
            target = TARGETS.get(figure, "") if name == OURS else ""
            table.add(f"{name}, {figure}", values, UNITS[figure], target)
    if OURS in found and OURS_NORMAL in found:
        ratios = zip(found[OURS_NORMAL][WAIT_P99], found[OURS][WAIT_P99], strict=True)
        table.add(f"{OURS}, {NORMAL_OVER_URGENT}", [normal / urgent for normal, urgent in ratios], "×")
