"""Counts the tasks of a queue in a file that its worker processes share, and writes how long single tasks waited.

The workers' tasks do what ``BENCH_WORK`` names before they are counted, so that all queues run the same code.
"""

import asyncio
import json
import mmap
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TASKS = int(os.environ.get("BENCH_TASKS", "0"))
URL = os.environ.get("BENCH_URL", "")
SLOTS = int(os.environ.get("BENCH_SLOTS", "1"))
"""The number of tasks that the worker runs at the same time."""
WORK, _, AMOUNT = os.environ.get("BENCH_WORK", "").partition(" ")
"""The work of a task: nothing, ``sleep`` or ``compute`` with a number of seconds, or ``database``."""
APART = 0.05
MOST_RUNS = 255
BYTES_A_TASK = 9
"""Eight for when it has ended, one for how often it has run."""


def payload_of(number: int) -> str:
    """The argument of the task with this number."""
    return f"{number:08}{'x' * 172}"


PAYLOADS = [payload_of(number) for number in range(TASKS)]
_lock = threading.Lock()
_threads = ThreadPoolExecutor(SLOTS)
_connections = threading.local()
_waits: list[float] = []


class Runs:
    """A file that counts the runs of each task in one byte; if tasks do work, it also has the end of each task."""

    @staticmethod
    def create(path: Path, tasks: int) -> None:
        """Make the file, in which no task has run."""
        path.write_bytes(bytes(max(1, tasks) * BYTES_A_TASK))

    def __init__(self, path: str, tasks: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = memoryview(mmap.mmap(file.fileno(), 0))
        self._ends, self._runs = self._map[: 8 * tasks].cast("d"), self._map[8 * tasks : BYTES_A_TASK * tasks]

    def add(self, number: int) -> None:
        """This task has run."""
        if WORK:
            self._ends[number] = time.monotonic()
        self._runs[number] = min(MOST_RUNS, self._runs[number] + 1)

    @property
    def counts(self) -> bytes:
        """The number of runs of each task."""
        return bytes(self._runs)

    @property
    def ends(self) -> list[float]:
        """When each task has ended, in order (`time.monotonic`, which is the same for all processes of a machine)."""
        return sorted(self._ends)


_runs = Runs(os.environ["BENCH_RUNS"], TASKS) if "BENCH_RUNS" in os.environ else None


def count(payload: str) -> None:
    """A task that runs in a thread: do its work, and count it."""
    if WORK == "sleep":
        time.sleep(float(AMOUNT))
    elif WORK:
        _block()
    _add(payload)


async def acount(payload: str) -> None:
    """A task that runs as a coroutine: as `count`, but neither waiting nor the database blocks the event loop."""
    if WORK == "sleep":
        await asyncio.sleep(float(AMOUNT))
    elif WORK == "database":
        await asyncio.get_running_loop().run_in_executor(_threads, _block)
    elif WORK:
        _block()
    _add(payload)


def _add(payload: str) -> None:
    if _runs:
        _runs.add(int(payload[:8]))


def _block() -> None:
    """Compute, or insert a row and select it. What is computed takes the same processor time in each Python."""
    if WORK == "compute":
        until = time.thread_time() + float(AMOUNT)
        while time.thread_time() < until:
            pass
        return
    if not hasattr(_connections, "own"):
        import psycopg

        _connections.own = psycopg.connect("dbname=postgres", autocommit=True)  # PGHOST and PGUSER say where
    (number,) = _connections.own.execute("INSERT INTO rows (text) VALUES ('x') RETURNING id").fetchone()
    _connections.own.execute("SELECT text FROM rows WHERE id = %s", (number,)).fetchone()


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
