"""The peers on the same server, each in a separate environment, interleaved with ours in each round.

A peer's module has a task that counts in a file that its worker processes share. A peer that loses a task, or runs one twice,
has no figure. One and two worker processes run tasks over a unix socket and over TCP; the processor time of both sides is
counted. Then each peer is sent tasks one by one, when it has been idle for a while.

Peers that store tasks in a database need one: ``python -m tests.tools.postgres python -m tests.lab.benchmarks peers``.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.engine.queue.queue import FairQueue
from tests.lab.benchmarks.peers.counting import Runs
from tests.lab.benchmarks.peers.systems import DJANGO, PEERS
from tests.lab.benchmarks.processes import Drain, cpu_seconds, wait_for_workers, wait_until, worker
from tests.lab.benchmarks.worker import NOT_MEASURED, drain, idle_to_start
from tests.servers import Server
from tests.topologies import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

    from tests.lab.benchmarks.peers.systems import System, Urgent
    from tests.lab.benchmarks.table import Table

HERE = Path(__file__).parent
TRIALS = 100
PATIENCE_SECONDS = 120
SETTLING_SECONDS = 0.5
"""After the last task: in it, one that runs twice is counted."""
KINDS = list(itertools.product(("unix socket", "TCP"), (1, 2)))
"""The transports and numbers of worker processes with which each peer is measured."""
ENVIRONMENTS = HERE.parents[3] / ".benchmarks"
OURS = "django_fairque"
WORKER_CPU, SERVER_CPU = "worker CPU per task", "server CPU per task"


class PeerError(Exception):
    """A peer has no figure, and why."""


def interpreter(least: tuple[int, int]) -> str:
    """A Python that is at least this new: the one that runs this, if it is, else the oldest such on the path or of pyenv.

    Raises:
        PeerError: there is none.
    """
    if sys.version_info[:2] >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 10):
        name = f"python{least[0]}.{minor}"
        for found in (shutil.which(name), *Path.home().glob(f".pyenv/versions/*/bin/{name}")):
            # pyenv puts a program on the path for each version, which fails unless the version is in use.
            if found and subprocess.run([found, "--version"], check=False, capture_output=True).returncode == 0:
                return str(found)
    raise PeerError(f"needs Python {least[0]}.{least[1]}, which is not installed here")


def environment(name: str, system: System) -> Path:
    """The peer's virtual environment, made on first use; its bin folder.

    Raises:
        PeerError: it cannot be made here.
    """
    home, packages = ENVIRONMENTS / name, [*system.packages, "hiredis", "psycopg[binary]"]
    ready = home / "ready"
    if not ready.exists() or ready.read_text() != " ".join(packages):
        python = interpreter(system.python)
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(home)], check=True, stderr=subprocess.DEVNULL)
        install = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *packages]
        done = subprocess.run(install, check=False, capture_output=True, text=True)
        if done.returncode:
            raise PeerError(f"pip cannot install it: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
        ready.write_text(" ".join(packages))
    return home / "bin"


@dataclass(frozen=True)
class Measured:
    """One round of a peer: what it took to run tasks in each of the `KINDS`, and its median milliseconds from idle to start."""

    drains: dict[tuple[str, int], Drain]
    wait: float


class Peer:
    """One peer on this server; ``tasks`` are sent to it."""

    def __init__(
        self,
        name: str,
        server: Server,
        tasks: int,
        url: str = "",
        *,
        work: str = "",
        slots: int = 0,
        urgent: Urgent | None = None,
        held: int = 0,
    ) -> None:
        self._name, self._system, self._tasks, self._server = name, PEERS[name], tasks, server
        if self._system.needs_database and "PGHOST" not in os.environ:
            raise PeerError("needs PostgreSQL: start the benchmarks with python -m tests.tools.postgres")
        self._folder = environment(name, self._system)
        self._result, self._runs = ENVIRONMENTS / f"{name}.result", ENVIRONMENTS / f"{name}.runs"
        Runs.create(self._runs, tasks)
        self._url, self._slots = url or f"unix://{server.socket}", slots or self._system.slots
        self._variables = {
            **os.environ,
            "PATH": f"{self._folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
            "DJANGO_SETTINGS_MODULE": "peer_django_settings",
            "BENCH_PEER": name,
            "BENCH_URL": self._url,
            "BENCH_TASKS": str(tasks),
            "BENCH_RESULT": str(self._result),
            "BENCH_RUNS": str(self._runs),
            "BENCH_SLOTS": str(self._slots),
            "BENCH_WORK": work,
            "BENCH_HELD": str(held),
        }
        self._command = self._system.command
        if urgent:
            self._variables["BENCH_URGENT"] = "1"
            self._command += urgent.arguments
        self._result.unlink(missing_ok=True)

    @property
    def runs(self) -> Runs:
        """The times and runs of its tasks."""
        return Runs(str(self._runs), self._tasks)

    def versions(self) -> dict[str, str]:
        """The versions of the peer and of the Python that runs it."""
        package = self._system.packages[0].partition("[")[0]
        program = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]), '.'.join(map(str, sys.version_info[:3])))"
        version, python = self._python("-c", program, package).split()
        return {"version": version, "python": python}

    def drain(self, processes: int) -> Drain:
        """Run tasks that are there when the worker starts, in this number of processes.

        Raises:
            PeerError: not each task ran exactly once.
        """
        self.send()
        runs = self.runs
        with self.workers(processes) as pids:
            self._wait_until_at_most(runs, self._tasks * (1 - NOT_MEASURED))
            left, started = runs.counts.count(0), time.perf_counter()
            workers, servers = cpu_seconds(pids), cpu_seconds([self._server.pid])
            self._wait_until_at_most(runs, 0)
            seconds = time.perf_counter() - started
            workers, servers = cpu_seconds(pids) - workers, cpu_seconds([self._server.pid]) - servers
            time.sleep(SETTLING_SECONDS)
        self._check_each_ran_once(runs)
        return Drain(left, seconds, workers, servers)

    def ends(self) -> list[float]:
        """Run tasks that are there when the worker starts, in one process; when each of them ended, in order.

        Raises:
            PeerError: not each task ran exactly once.
        """
        self.send()
        runs = self.runs
        with self.workers(1):
            self._wait_until_at_most(runs, 0)
            time.sleep(SETTLING_SECONDS)
        self._check_each_ran_once(runs)
        return runs.ends

    def _check_each_ran_once(self, runs: Runs) -> None:
        if (total := sum(runs.counts)) != self._tasks:
            raise PeerError(f"ran {total} tasks, expected {self._tasks}")

    def _wait_until_at_most(self, runs: Runs, left: float) -> None:
        try:
            wait_until(lambda: runs.counts.count(0) <= left, PATIENCE_SECONDS)
        except TimeoutError as error:
            raise PeerError(f"not all of its {self._tasks} tasks ran in {PATIENCE_SECONDS} s") from error

    def idle_to_start(self) -> list[float]:
        """Milliseconds from before a task is sent to its start, each to an idle worker."""
        if self._system.needs_database:
            self._empty_database()
        with self.workers(1, "--burst"):
            time.sleep(3)  # for its start, which would count as a wait of the first tasks
            self.send("stamp", empty=False)
            waits = self._answer()
        return [wait * 1000 for wait in waits[len(waits) // 10 :]]

    def push_times(self, kind: str = "timed") -> tuple[float, float]:
        """Return the seconds of a push, and the producer's processor time for it. ``kind`` is of `counting.send`."""
        self.send(kind)
        seconds, processor = self._answer()
        return seconds, processor

    def send(self, *arguments: str, empty: bool = True) -> None:
        """Send all tasks, or those that these arguments name (`counting.send`); ``empty`` empties its database before."""
        if self._system.needs_database and empty:
            self._empty_database()
        self._python("-m", self._system.module, *arguments)

    def _empty_database(self) -> None:
        self._python(*DJANGO, "migrate", "--verbosity", "0")
        self._python(*DJANGO, "flush", "--no-input", "--verbosity", "0")

    def _python(self, *arguments: str) -> str:
        command = [str(self._folder / "python"), *arguments]
        done = subprocess.run(command, env=self._variables, cwd=HERE, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or f"no reason given, exit code {done.returncode}").splitlines()[-1]
            raise PeerError(f"{' '.join(arguments)} failed: {reason}")
        return done.stdout

    def _answer(self) -> Any:
        try:
            wait_until(self._result.exists, PATIENCE_SECONDS)
        except TimeoutError as error:
            raise PeerError(f"not all of its {self._tasks} tasks ran in {PATIENCE_SECONDS} s") from error
        return json.loads(self._result.read_text())

    @contextmanager
    def workers(self, number: int, *without: str) -> Iterator[list[int]]:
        """Start this ``number`` of workers without these arguments; yields the ids of the processes."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._worker(index, without)) for index in range(number)]

    @contextmanager
    def _worker(self, number: int, without: Sequence[str]) -> Iterator[int]:
        given = {"url": self._url, "number": number, "slots": self._slots}
        words = [word.format(**given) for word in self._command]
        command = [str(self._folder / words[0]), *(word for word in words[1:] if word not in without)]
        with (ENVIRONMENTS / f"{self._name}.{number}.log").open("wb") as log:
            process = subprocess.Popen(command, env=self._variables, cwd=HERE, stdout=log, stderr=log)
            try:
                yield process.pid
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 3) -> None:
    """Measure ours and the peers, and add their figures to ``table``; in its details, their versions or why one has no figures.

    Args:
        table: where the figures go.
        quick: one round of fewer tasks.
        only: names of peers; by default all of them.
        rounds: how often each is measured, if not quick.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    rounds, scale = (1, 0.2) if quick else (rounds, 1.0)
    port = free_port()
    names = [OURS, *(only or PEERS)]
    found: dict[str, list[Measured]] = {name: [] for name in names}
    with Server("--port", str(port)) as server, server.client() as client:
        for name in itertools.chain.from_iterable([names] * rounds):
            if name not in table.details:
                found[name] += _measure(table, name, server, client, f"redis://127.0.0.1:{port}", scale)
        complete = [name for name in names if name not in table.details]
        for name in complete[1:]:
            table.details[name] = Peer(name, server, 0).versions()
    for kind in KINDS:
        _add_drains(table, {name: [result.drains[kind] for result in found[name]] for name in complete}, kind)
    for name in complete:
        table.add(wait_of(name), [result.wait for result in found[name]], "ms", "≤ 1.2" if name == OURS else "")


def _measure(table: Table, name: str, server: Server, client: Redis, tcp_url: str, scale: float) -> list[Measured]:
    """One round of ours or of a peer; if it has no figures, none, and the table's details give the reason."""
    try:
        drains = {
            (transport, processes): _drain(
                name, server, client, scale, processes, tcp_url if transport == "TCP" else ""
            )
            for transport, processes in KINDS
        }
        return [Measured(drains, measure_idle_to_start(name, server, client))]
    except PeerError as error:
        table.details[name] = {"missing": str(error)}
        print(f"{name}: {error}", file=sys.stderr)
        return []


def _add_drains(table: Table, drains: dict[str, list[Drain]], kind: tuple[str, int]) -> None:
    medians = {}
    for name, found in drains.items():
        medians[name] = table.add(rate_of(name, *kind), [drain.rate for drain in found], "/s")
        table.add(f"  {WORKER_CPU}", [drain.worker_us for drain in found], "µs")
        if name == OURS or not PEERS[name].needs_database:
            table.add(f"  {SERVER_CPU}", [drain.server_us for drain in found], "µs")
    peers = list(drains)[1:]
    if peers:
        fastest = max(peers, key=lambda name: medians[name])
        table.add("  ours over the fastest", medians[OURS] / medians[fastest], "×", f"{fastest}; > 1 ×")


def rate_of(name: str, transport: str = "TCP", processes: int = 1) -> str:
    """Return the name of the figure of this peer's tasks a second."""
    return f"{name}, {transport}, {processes} worker process{'es' * (processes > 1)}, no-op tasks"


def wait_of(name: str) -> str:
    """Return the name of the figure of this peer's time from idle to start."""
    return f"{name}, idle to start, p50"


def _drain(name: str, server: Server, client: Redis, scale: float, processes: int, url: str) -> Drain:
    client.flushall()
    if name == OURS:
        return drain(server, client, processes, int(20_000 * scale), url=url)
    return Peer(name, server, int(PEERS[name].tasks * scale), url).drain(processes)


def measure_idle_to_start(name: str, server: Server, client: Redis) -> float:
    """The median milliseconds from sending a task to its start."""
    client.flushall()
    if name != OURS:
        return statistics.median(Peer(name, server, TRIALS).idle_to_start())
    queue = FairQueue(client)
    with worker(server):
        wait_for_workers(queue)
        time.sleep(3)
        return statistics.median(idle_to_start(queue, TRIALS, 0.05))
