"""Worker processes for the benchmarks, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def worker(server: Server, *arguments: str, lease: float = 30) -> Iterator[subprocess.Popen[bytes]]:
    """``fairque_worker`` on the benchmarks' project."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.project.settings",
        "BENCHMARK_SERVER": server.url,
        "BENCHMARK_LEASE": str(lease),
    }
    command = [sys.executable, "-m", "django", "fairque_worker", *arguments]
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
