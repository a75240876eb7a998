"""The peers on the same server, each in an environment of its own, interleaved with ours in each round.

A peer's module has a task that counts in its process; the one that completes the count of ``BENCH_TASKS`` different tasks writes
the seconds since the first. A peer that loses a task, or runs one twice, has no figure. Nothing but the queue's own work
is in between, for ours as for theirs. Then each is sent tasks one by one, when it has been idle for a while.

Peers that store tasks in a database need one: ``python -m tests.postgres python -m tests.benchmarks peers``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.engine.queue.queue import FairQueue
from tests.benchmarks.peers.systems import DJANGO, PEERS
from tests.benchmarks.processes import wait_for_workers, wait_until, worker
from tests.benchmarks.worker import idle_to_start, throughput
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis import Redis

    from tests.benchmarks.peers.systems import System
    from tests.benchmarks.table import Table

HERE = Path(__file__).parent
TRIALS = 100
PATIENCE_SECONDS = 120
SETTLING_SECONDS = 0.5
"""After the last task: in it, one that runs twice is counted."""
ENVIRONMENTS = HERE.parent.parent.parent / ".benchmarks"
OURS = "django_fairque"


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
    home, packages = ENVIRONMENTS / name, [*system.packages, "hiredis"]
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


class Peer:
    """One peer on this server; ``tasks`` are sent to it."""

    def __init__(self, name: str, server: Server, tasks: int) -> None:
        self._name, self._system, self._tasks = name, PEERS[name], tasks
        if self._system.needs_database and "PGHOST" not in os.environ:
            raise PeerError("needs PostgreSQL: start the benchmarks with python -m tests.postgres")
        self._folder = environment(name, self._system)
        self._result = ENVIRONMENTS / f"{name}.result"
        self._url = f"unix://{server.socket}"
        self._variables = {
            **os.environ,
            "PATH": f"{self._folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
            "DJANGO_SETTINGS_MODULE": "peer_django_settings",
            "BENCH_PEER": name,
            "BENCH_SOCKET": server.socket,
            "BENCH_URL": self._url,
            "BENCH_TASKS": str(tasks),
            "BENCH_RESULT": str(self._result),
        }
        self._result.unlink(missing_ok=True)

    def versions(self) -> dict[str, str]:
        """The versions of the peer and of the Python that runs it."""
        package = self._system.packages[0].partition("[")[0]
        program = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]), '.'.join(map(str, sys.version_info[:3])))"
        version, python = self._python("-c", program, package).split()
        return {"version": version, "python": python}

    def rate(self) -> float:
        """Tasks a second, of tasks that are there when its worker starts.

        Raises:
            PeerError: not each task ran exactly once.
        """
        self._send()
        with self._worker():
            self._answer()
            time.sleep(SETTLING_SECONDS)
            found = self._answer()
        if found["runs"] != self._tasks:
            raise PeerError(f"ran {found['runs']} tasks, expected {self._tasks}")
        return self._tasks / float(found["seconds"])

    def idle_to_start(self) -> list[float]:
        """Milliseconds from before a task is sent to its start, each to an idle worker."""
        if self._system.needs_database:
            self._empty_database()
        with self._worker("--burst"):
            time.sleep(3)  # for its start, which would count as a wait of the first tasks
            self._send("stamp", empty=False)
            waits = self._answer()
        return [wait * 1000 for wait in waits[len(waits) // 10 :]]

    def _send(self, *how: str, empty: bool = True) -> None:
        if self._system.needs_database and empty:
            self._empty_database()
        self._python("-m", self._system.module, *how)

    def _empty_database(self) -> None:
        self._python(*DJANGO, "migrate", "--verbosity", "0")
        self._python(*DJANGO, "flush", "--no-input", "--verbosity", "0")

    def _python(self, *arguments: str) -> str:
        command = [str(self._folder / "python"), *arguments]
        done = subprocess.run(command, env=self._variables, cwd=HERE, check=False, capture_output=True, text=True)
        if done.returncode:
            raise PeerError(
                f"{' '.join(arguments)} failed: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}"
            )
        return done.stdout

    def _answer(self) -> Any:
        try:
            wait_until(self._result.exists, PATIENCE_SECONDS)
        except TimeoutError as error:
            raise PeerError(f"not all of its {self._tasks} tasks ran in {PATIENCE_SECONDS} s") from error
        return json.loads(self._result.read_text())

    @contextmanager
    def _worker(self, *without: str) -> Iterator[None]:
        words = [word.replace("{url}", self._url) for word in self._system.command if word not in without]
        with (ENVIRONMENTS / f"{self._name}.log").open("wb") as log:
            command = [str(self._folder / words[0]), *words[1:]]
            process = subprocess.Popen(command, env=self._variables, cwd=HERE, stdout=log, stderr=log)
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def run(table: Table, *, quick: bool, only: Sequence[str] = ()) -> None:
    """Measure ours and the peers, and add their figures to ``table``; in its details, their versions or why one has no figures.

    Args:
        table: where the figures go.
        quick: one round of fewer tasks.
        only: names of peers; by default all of them.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    rounds, scale = (1, 0.2) if quick else (3, 1.0)
    rates: dict[str, list[float]] = {name: [] for name in (OURS, *(only or PEERS))}
    waits: dict[str, list[float]] = {name: [] for name in rates}
    with Server() as server, server.client() as client:
        for _ in range(rounds):
            rates[OURS].append(throughput(server, client, 1, int(20_000 * scale)))
            waits[OURS].append(_ours_from_idle(server, client))
            for name in [name for name in rates if name not in (OURS, *table.details)]:
                measured = _measure(table, name, server, client, int(PEERS[name].tasks * scale))
                if measured:
                    rates[name].append(measured[0])
                    waits[name].append(measured[1])
        complete = [name for name in rates if name not in table.details]
        for name in complete[1:]:
            table.details[name] = Peer(name, server, 0).versions()
    medians = {name: table.add(rate_of(name), rates[name], "/s") for name in complete}
    if len(complete) > 1:
        fastest = max(complete[1:], key=lambda name: medians[name])
        table.add(f"ours over the fastest ({fastest})", medians[OURS] / medians[fastest], "×", "≥ 4 ×")
    for name in complete:
        table.add(wait_of(name), waits[name], "ms", "≤ 2" if name == OURS else "")


def rate_of(name: str) -> str:
    """How the figure of this peer's tasks a second is named."""
    return f"{name}, one worker, no-op tasks"


def wait_of(name: str) -> str:
    """How the figure of this peer's time from idle to start is named."""
    return f"{name}, idle to start, p50"


def _measure(table: Table, name: str, server: Server, client: Redis, tasks: int) -> tuple[float, float] | None:
    """A peer's tasks a second, and its median milliseconds from idle to start; if it has none, the table's details say why."""
    try:
        client.flushall()
        rate = Peer(name, server, tasks).rate()
        client.flushall()
        return rate, statistics.median(Peer(name, server, TRIALS).idle_to_start())
    except PeerError as error:
        table.details[name] = {"missing": str(error)}
        print(f"{name}: {error}", file=sys.stderr)
        return None


def _ours_from_idle(server: Server, client: Redis) -> float:
    client.flushall()
    queue = FairQueue(client)
    with worker(server):
        wait_for_workers(queue)
        time.sleep(3)
        return statistics.median(idle_to_start(queue, TRIALS, 0.05))
