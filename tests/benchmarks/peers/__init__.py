"""The peers on the same server, each in an environment of its own, interleaved with ours in each round.

A peer's module has a task that counts in its process; the one that brings the count to ``BENCH_TASKS`` writes the
seconds since the first. Nothing but the queue's own work is in between, for ours as for theirs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.processes import wait_until
from tests.benchmarks.worker import throughput
from tests.servers import Server

if TYPE_CHECKING:
    from tests.benchmarks.table import Table

HERE = Path(__file__).parent
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


def rate(name: str, server: Server, scale: float) -> float:
    packages, command, tasks = PEERS[name]
    tasks = int(tasks * scale)
    folder, result = environment(name, packages), ENVIRONMENTS / f"{name}.result"
    result.unlink(missing_ok=True)
    variables = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE),
        "BENCH_SOCKET": server.socket,
        "BENCH_TASKS": str(tasks),
        "BENCH_RESULT": str(result),
    }
    subprocess.run(
        [str(folder / "python"), "-m", f"peer_{name}"], env=variables, cwd=HERE, check=True, stderr=subprocess.DEVNULL
    )
    words = [word.replace("{url}", f"unix://{server.socket}") for word in command]
    log = (ENVIRONMENTS / f"{name}.log").open("wb")
    process = subprocess.Popen([str(folder / words[0]), *words[1:]], env=variables, cwd=HERE, stdout=log, stderr=log)
    try:
        wait_until(lambda: result.exists() and result.read_text(), 120)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
    time.sleep(0.5)
    return tasks / float(result.read_text())


def run(table: Table, *, quick: bool) -> None:
    ENVIRONMENTS.mkdir(exist_ok=True)
    rounds, scale = (1, 0.5) if quick else (3, 1.0)
    rates: dict[str, list[float]] = {"django_fairque": [], **{name: [] for name in PEERS}}
    with Server() as server, server.client() as client:
        for _ in range(rounds):
            rates["django_fairque"].append(throughput(server, client, 1, int(20_000 * scale)))
            for name in PEERS:
                client.flushall()
                rates[name].append(rate(name, server, scale))
    medians = {name: table.add(f"{name}, one worker, no-op tasks", values, "/s") for name, values in rates.items()}
    fastest = max((name for name in medians if name != "django_fairque"), key=lambda name: medians[name])
    table.add(f"ours over the fastest ({fastest})", medians["django_fairque"] / medians[fastest], "×", "≥ 4 ×")
