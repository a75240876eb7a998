"""Counts the tasks of a peer in a file that its worker processes share, and writes how long single tasks waited."""

import asyncio
import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TASKS = int(os.environ.get("BENCH_TASKS", "0"))
URL = os.environ.get("BENCH_URL", "")
PAYLOADS = [f"{number:08}{'x' * 172}" for number in range(TASKS)]
APART = 0.05
MOST_RUNS = 255
_lock = threading.Lock()
_waits: list[float] = []


class Runs:
    """How often each task has run: a byte of the file for each of them."""

    def __init__(self, path: str, tasks: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), tasks)

    def add(self, number: int) -> None:
        """This task has run."""
        self._map[number] = min(MOST_RUNS, self._map[number] + 1)

    @property
    def each(self) -> bytes:
        """The number of runs of each task."""
        return self._map[:]


_runs = Runs(os.environ["BENCH_RUNS"], TASKS) if "BENCH_RUNS" in os.environ else None


def count(payload: str) -> None:
    """A task has run."""
    if _runs:
        _runs.add(int(payload[:8]))


def stamp(sent: float) -> None:
    """A task that was sent then has started."""
    with _lock:
        _waits.append(time.time() - sent)
        if len(_waits) == TASKS:
            _write(_waits)


def _write(result: Any) -> None:
    """In one step, so that a process that waits for the file reads all of it."""
    file = Path(os.environ["BENCH_RESULT"])
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(result))
    draft.replace(file)


def is_stamped() -> bool:
    """Whether tasks are sent one by one, each with the time when it was sent."""
    return "stamp" in sys.argv


def send(one: Any, stamped: Any) -> None:
    """All tasks, one call after the other; or, with ``stamp`` in the command, one each 50 ms with the time when it was sent."""
    for payload in PAYLOADS:
        if is_stamped():
            time.sleep(APART)
            stamped(time.time())
        else:
            one(payload)


async def asend(one: Any, stamped: Any) -> None:
    """As ``send``, with coroutine functions."""
    for payload in PAYLOADS:
        if is_stamped():
            await asyncio.sleep(APART)
            await stamped(time.time())
        else:
            await one(payload)
