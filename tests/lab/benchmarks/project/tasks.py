from __future__ import annotations

import os
import signal
import time

from django_fairque import task
from tests.lab.benchmarks.peers import counting


@task(name="bench.noop")
def noop(payload: str) -> None:
    pass


@task(name="bench.stamp")
def stamp(sent: float) -> float:
    """Seconds from sending to starting, on one machine's clock."""
    return time.time() - sent


@task(name="bench.sleep", max_retries=0)
def sleep(seconds: float) -> None:
    """Waits as for another service: no slot keeps another from running."""
    time.sleep(seconds)


@task(name="bench.busy", max_retries=0)
def busy(seconds: float) -> int:
    """Busy for so long; returns the process it ran in."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return os.getpid()


@task(name="bench.work", max_retries=0)
def work(steps: int) -> int:
    """The same work each time: 10,000 steps are about half a millisecond of Python."""
    return sum(step % 7 for step in range(steps))


@task(name="bench.poison")
def poison() -> None:
    """Ends its process, as a segmentation fault does."""
    os.kill(os.getpid(), signal.SIGKILL)


@task(name="bench.count", max_retries=0)
def count(payload: str) -> None:
    """Do the same as the peers' tasks."""
    counting.count(payload)


@task(name="bench.acount", max_retries=0)
async def acount(payload: str) -> None:
    """Do the same as the peers' coroutines."""
    await counting.acount(payload)


@task(name="bench.count_for", user="user", max_retries=0)
def count_for(user: str, payload: str) -> None:
    """Do the same for a user."""
    counting.count(payload)
