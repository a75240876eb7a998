"""The peers on the same server, each in an environment of its own, interleaved with ours in each round.

A peer's module has a task that counts in its process; the one that brings the count to ``BENCH_TASKS`` writes the
seconds since the first. Nothing but the queue's own work is in between, for ours as for theirs. Then each is
sent tasks one by one, when it has been idle for a while.
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
from typing import TYPE_CHECKING

from django_fairque.engine.queue.queue import FairQueue
from tests.benchmarks.processes import wait_for_workers, wait_until, worker
from tests.benchmarks.worker import idle_to_start, throughput
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from tests.benchmarks.table import Table

HERE = Path(__file__).parent
TRIALS = 100
ENVIRONMENTS = HERE.parent.parent.parent / ".benchmarks"

PEERS = {
    "rq": (["rq"], ["rq", "worker", "-w", "rq.SimpleWorker", "--url", "{url}", "--burst", "--quiet"], 2_000),
    "celery": (
        ["celery[redis]"],
        [
            "celery",
            "-A",
            "peer_celery",
            "worker",
            "--pool",
            "threads",
            "-c",
            "8",
            "--loglevel",
            "ERROR",
            "--without-gossip",
        ],
        3_000,
    ),
    "huey": (["huey", "redis"], ["huey_consumer", "peer_huey.huey", "-k", "thread", "-w", "8", "-q", "-n"], 10_000),
    "dramatiq": (["dramatiq[redis]"], ["dramatiq", "peer_dramatiq", "--processes", "1", "--threads", "8"], 10_000),
}


def environment(name: str, packages: list[str]) -> Path:
    """The peer's virtual environment, made on first use; its bin folder."""
    home = ENVIRONMENTS / name
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, stderr=subprocess.DEVNULL)
        install = [str(home / "bin" / "pip"), "install", "--quiet", *packages, "hiredis"]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
        (home / "ready").touch()
    return home / "bin"


class Peer:
    """One peer on this server; ``tasks`` are sent to it."""

    def __init__(self, name: str, server: Server, tasks: int) -> None:
        packages, self._command, _ = PEERS[name]
        self._name, self._tasks, self._socket = name, tasks, server.socket
        self._folder = environment(name, packages)
        self._result = ENVIRONMENTS / f"{name}.result"
        self._variables = {
            **os.environ,
            "PATH": f"{self._folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
            "BENCH_SOCKET": server.socket,
            "BENCH_TASKS": str(tasks),
            "BENCH_RESULT": str(self._result),
        }
        self._result.unlink(missing_ok=True)

    def rate(self) -> float:
        """Tasks a second, of tasks that are there when its worker starts."""
        self._send()
        with self._worker():
            seconds = float(self._answer())
        time.sleep(0.5)
        return self._tasks / seconds

    def idle_to_start(self) -> list[float]:
        """Milliseconds from before a task is sent to its start, each to an idle worker."""
        with self._worker("--burst"):
            time.sleep(3)  # for its start, of which the first tasks tell as well
            self._send("stamp")
            waits = json.loads(self._answer())
        return [wait * 1000 for wait in waits[len(waits) // 10 :]]

    def _send(self, *how: str) -> None:
        command = [str(self._folder / "python"), "-m", f"peer_{self._name}", *how]
        subprocess.run(command, env=self._variables, cwd=HERE, check=True, stderr=subprocess.DEVNULL)

    def _answer(self) -> str:
        wait_until(lambda: self._result.exists() and self._result.read_text(), 120)
        return self._result.read_text()

    @contextmanager
    def _worker(self, *without: str) -> Iterator[None]:
        words = [word.replace("{url}", f"unix://{self._socket}") for word in self._command if word not in without]
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


def run(table: Table, *, quick: bool) -> None:
    ENVIRONMENTS.mkdir(exist_ok=True)
    rounds, scale = (1, 0.5) if quick else (3, 1.0)
    names = ["django_fairque", *PEERS]
    rates: dict[str, list[float]] = {name: [] for name in names}
    waits: dict[str, list[float]] = {name: [] for name in names}
    with Server() as server, server.client() as client:
        for _ in range(rounds):
            rates["django_fairque"].append(throughput(server, client, 1, int(20_000 * scale)))
            waits["django_fairque"].append(_ours_from_idle(server, client))
            for name, (_packages, _command, tasks) in PEERS.items():
                client.flushall()
                rates[name].append(Peer(name, server, int(tasks * scale)).rate())
                client.flushall()
                waits[name].append(statistics.median(Peer(name, server, TRIALS).idle_to_start()))
    medians = {name: table.add(f"{name}, one worker, no-op tasks", values, "/s") for name, values in rates.items()}
    fastest = max((name for name in medians if name != "django_fairque"), key=lambda name: medians[name])
    table.add(f"ours over the fastest ({fastest})", medians["django_fairque"] / medians[fastest], "×", "≥ 4 ×")
    for name, values in waits.items():
        table.add(f"{name}, idle to start, p50", values, "ms", "≤ 2" if name == "django_fairque" else "")


def _ours_from_idle(server: Server, client: Redis) -> float:
    client.flushall()
    queue = FairQueue(client)
    with worker(server):
        wait_for_workers(queue)
        time.sleep(3)
        return statistics.median(idle_to_start(queue, TRIALS, 0.05))
