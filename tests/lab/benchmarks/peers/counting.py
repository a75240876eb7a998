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
URGENT = "BENCH_URGENT" in os.environ
"""Some tasks are urgent: the queue is configured as its documentation recommends for this."""
HELD = int(os.environ.get("BENCH_HELD", "0"))
"""The number of first tasks that wait until all of them have started, because processes don't start at the same time."""
APART = 0.05
MAILS_APART = 0.2
MOST_SECONDS_TO_START = 60
MOST_RUNS = 255
NOT_TIMED = 100
"""The number of first pushes that are not timed: they connect, and load modules."""
BYTES_A_TASK = 25
"""Eight each for when it was sent, has started and has ended, one for how often it has run."""


def payload_of(number: int) -> str:
    """The argument of the task with this number."""
    return f"{number:08}{'x' * 172}"


PAYLOADS = [payload_of(number) for number in range(TASKS)]
_lock = threading.Lock()
_threads = ThreadPoolExecutor(SLOTS)
_connections = threading.local()
_waits: list[float] = []


class Runs:
    """A file that counts the runs of each task in one byte; if tasks do work, it also has the start and end of each task.

    Attributes:
        sent: when each mail was sent (`time.monotonic`, which is the same for all processes of a machine); 0 if it was not.
        started: when each task has started.
        ended: when each task has ended.
    """

    @staticmethod
    def create(path: Path, tasks: int) -> None:
        """Make the file, in which no task has run."""
        path.write_bytes(bytes(max(1, tasks) * BYTES_A_TASK))

    def __init__(self, path: str, tasks: int) -> None:
        with Path(path).open("r+b") as file:
            self._map = memoryview(mmap.mmap(file.fileno(), 0))
        columns = [self._map[8 * tasks * index : 8 * tasks * (index + 1)].cast("d") for index in range(3)]
        self.sent, self.started, self.ended = columns
        self._runs = self._map[24 * tasks : BYTES_A_TASK * tasks]

    def start(self, number: int) -> None:
        """This task starts."""
        if WORK:
            self.started[number] = time.monotonic()

    def add(self, number: int) -> None:
        """This task has run."""
        if WORK:
            self.ended[number] = time.monotonic()
        self._runs[number] = min(MOST_RUNS, self._runs[number] + 1)

    @property
    def counts(self) -> bytes:
        """The number of runs of each task."""
        return bytes(self._runs)

    @property
    def ends(self) -> list[float]:
        """When each task has ended, in order."""
        return sorted(self.ended)


_runs = Runs(os.environ["BENCH_RUNS"], TASKS) if "BENCH_RUNS" in os.environ else None


def count(payload: str) -> None:
    """A task that runs in a thread: do its work, and count it."""
    _start(payload)
    if WORK == "sleep":
        time.sleep(float(AMOUNT))
    elif WORK:
        _block()
    _add(payload)


async def acount(payload: str) -> None:
    """A task that runs as a coroutine: as `count`, but neither waiting nor the database blocks the event loop."""
    _start(payload)
    if WORK == "sleep":
        await asyncio.sleep(float(AMOUNT))
    elif WORK == "database":
        await asyncio.get_running_loop().run_in_executor(_threads, _block)
    elif WORK:
        _block()
    _add(payload)


def _start(payload: str) -> None:
    if _runs:
        number = int(payload[:8])
        _runs.start(number)
        while number < HELD and not all(_runs.started[:HELD]):
            time.sleep(0.001)


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


def write_times(began: tuple[float, float], tasks: int) -> None:
    """Write how many seconds have passed since ``began``, and this process's processor time, for each of the ``tasks``."""
    _write([(time.perf_counter() - began[0]) / tasks, (time.process_time() - began[1]) / tasks])


def is_stamped() -> bool:
    """Whether tasks are sent one by one, each with the time when it was sent."""
    return "stamp" in sys.argv


def send(one: Any, stamped: Any, urgent: Any = None) -> None:
    """Send all tasks, one call after the other, or those that the command's arguments name.

    ``timed``: all, and write how long that took. ``stamp``: one each 50 ms with the time when it was sent. ``normal 0 9`` and
    ``urgent 0 9``: the tasks from number 0 to 8.
    ``mails 9 8``: `send_mails` from number 9 on, as soon as 8 other tasks have started.
    """
    kind, *words = sys.argv[1:] or ["normal"]
    if kind == "timed":
        for number, payload in enumerate(PAYLOADS):
            if number == NOT_TIMED:
                began = time.perf_counter(), time.process_time()
            one(payload)
        write_times(began, TASKS - NOT_TIMED)
        return
    first, second = map(int, words or (0, TASKS))
    if kind == "mails" and _runs:
        send_mails(urgent, _runs, first, second)
        return
    for payload in PAYLOADS[first:second]:
        if kind == "stamp":
            time.sleep(APART)
            stamped(time.time())
        else:
            (urgent if kind == "urgent" else one)(payload)


def send_mails(urgent: Any, runs: Runs, first: int, slots: int) -> None:
    """Send an urgent task each 200 ms, as soon as the other tasks occupy all slots and until they have ended.

    Args:
        urgent: called with the payload of each urgent task.
        runs: has the times and runs of all tasks.
        first: the number of the first urgent task. Lower numbers are the other tasks.
        slots: number of tasks that run at the same time.
    """
    latest = time.monotonic() + MOST_SECONDS_TO_START
    while not all(runs.started[:slots]) and time.monotonic() < latest:
        time.sleep(0.01)
    for number in range(first, len(runs.sent)):
        if 0 not in runs.counts[:first]:
            return
        runs.sent[number] = time.monotonic()
        urgent(payload_of(number))
        time.sleep(MAILS_APART)


async def asend(one: Any, stamped: Any, many: Any = None) -> None:
    """As ``send``, with coroutine functions. ``timed_bulk``: all tasks in one call of ``many``."""
    if "timed_bulk" in sys.argv:
        began = time.perf_counter(), time.process_time()
        await many(PAYLOADS)
        write_times(began, TASKS)
        return
    for number, payload in enumerate(PAYLOADS):
        if number == NOT_TIMED:
            began = time.perf_counter(), time.process_time()
        if is_stamped():
            await asyncio.sleep(APART)
            await stamped(time.time())
        else:
            await one(payload)
    if "timed" in sys.argv:
        write_times(began, TASKS - NOT_TIMED)
