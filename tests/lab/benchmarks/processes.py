"""Starts worker processes for the benchmarks and waits for their results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Drain:
    """The cost of running the measured tasks: seconds, processor time of the workers and of the server, and commands that the
    server executed (not counted for a peer)."""

    tasks: int
    seconds: float
    worker_cpu: float
    server_cpu: float
    commands: int = 0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.tasks / self.seconds

    @property
    def worker_us(self) -> float:
        """Microseconds of the workers' processor time for each task."""
        return self.worker_cpu * 1e6 / self.tasks

    @property
    def server_us(self) -> float:
        """Microseconds of the server's processor time for each task."""
        return self.server_cpu * 1e6 / self.tasks


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes and all that they started, also of those that have ended."""
    seconds = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for member in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    seconds += sum(member.cpu_times()[:4])  # its own, and of its children that have ended
    return seconds


@contextmanager
def worker(
    server: Server,
    *arguments: str,
    lease: float = 30,
    url: str = "",
    program: Sequence[str] = ("django", "fairque_worker"),
    variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``fairque_worker`` on the benchmarks' project.

    Args:
        server: the server of its queue.
        arguments: of the command.
        lease: seconds of a lease.
        url: another address of the server than its socket.
        program: the module to run instead, and its first arguments.
        variables: further ones of its environment.
    """
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.lab.benchmarks.project.settings",
        "BENCHMARK_SERVER": url or server.url,
        "BENCHMARK_LEASE": str(lease),
        **(variables or {}),
    }
    command = [sys.executable, "-m", *program, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_until(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the benchmark did not get where it should")
        time.sleep(0.005)


def wait_for_workers(queue: FairQueue, number: int = 1) -> None:
    wait_until(lambda: len(queue.workers()) >= number)
