"""Limits of time and memory. When a task reaches its time limit or is canceled, an exception is raised in its thread to
interrupt it.

CPython can set an exception in another thread (`PyThreadState_SetAsyncExc`). The other thread raises the exception at
one of its next bytecodes, in any code that it then runs. `Guard` makes sure that the exception interrupts the task and
no other code:

- it is set under the guard's lock, only while a task is armed, and at most once per task;
- `disarm` takes the lock, so nothing is set afterwards, and replaces an exception that was set but not yet raised by one that
  it catches itself;
- an exception that was set before `disarm` may be raised in the few lines around the task, so the slot calls `disarm`
again when an interruption escapes from it (`run_guarded`). The second call can't be interrupted, because no exception
is set any more.

The exception can't interrupt code that does not return to the interpreter (a long call into C, `time.sleep`). The hard
time limit, at which the process is killed, is for that code.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TypeVar

from django_fairque.tasks.errors import SoftTimeLimitExceeded, TaskRevoked
from django_fairque.worker.common.log import logger
from django_fairque.worker.common.wakeup import Wakeup

T = TypeVar("T")

TIME_LIMIT_TICK_SECONDS = 0.05
"""Seconds between two checks of the time limits while a task runs: limits are kept to this precision."""

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)

TICK_REPORT_SECONDS = 60.0
"""Minimum seconds between two log lines about a failed check of the limits."""
INTERRUPTIONS = (SoftTimeLimitExceeded, TaskRevoked)


class _Withdrawn(BaseException):
    """Replaces an interruption that was set for a task which has already ended. `Guard` catches this exception."""


def _withdraw_exception(ident: int) -> None:
    """Remove the exception that was set for the calling thread, if it has not been raised.

    Setting no exception (NULL) is not enough: CPython then still expects an exception until the next one is raised.
    This slows down bytecodes that check for it, and on Python 3.11 a function that is traced (by a debugger, or to
    measure coverage) never begins.
    """
    try:
        _set_exception(ident, _Withdrawn)
        while True:
            pass
    except _Withdrawn:
        return


class Guard:
    """Interrupts the task that runs in one slot, and no other code."""

    __slots__ = ("_hit", "_ident", "_lock", "deadline", "started")

    def __init__(self) -> None:
        self.started = 0.0
        self.deadline = 0.0
        """Time when the task is interrupted (`time.monotonic()`); 0 if no interruption is planned."""
        self._ident = 0
        self._hit = False
        self._lock = threading.Lock()

    def arm(self, started: float, timeout: float) -> None:
        """Allow interruptions of the calling thread from now on, because a task begins."""
        self._ident = threading.get_ident()
        self._hit = False
        self.started = started
        self.deadline = started + timeout

    def disarm(self) -> None:
        """Prevent further interruptions of the calling thread, because its task has ended."""
        while True:
            try:
                with self._lock:
                    self.deadline = 0.0
                    is_hit, self._hit = self._hit, False
                if is_hit:
                    _withdraw_exception(self._ident)
                return  # noqa: TRY300 - it may still be interrupted here, before it has returned
            except INTERRUPTIONS:  # noqa: PERF203 - once per task
                continue

    def interrupt(self, kind: type[BaseException], *, started: float) -> bool:
        """Raise an exception of the class ``kind`` in the task that began at ``started``, if the task still runs and
        was not interrupted before.
        """
        with self._lock:
            if not self.deadline or self._hit or self.started != started:
                return False
            self._hit = True
            self.deadline = float("inf")
            _set_exception(self._ident, kind)
            return True


def run_guarded(
    guard: Guard, started: float, timeout: float, body: Callable[[], T], on_interrupted: Callable[[BaseException], T]
) -> T:
    """Call ``body``, which may be interrupted, and return its result. If an interruption ended
    ``body``, return the result of ``on_interrupted``.
    """
    outcome: T | None = None
    try:
        guard.arm(started, timeout)
        try:
            outcome = body()
        finally:
            guard.disarm()
    except INTERRUPTIONS as error:
        guard.disarm()
        return on_interrupted(error) if outcome is None else outcome
    return outcome


class TimeLimitThread(threading.Thread):
    """A thread that interrupts the guarded tasks whose time is over. The thread sleeps while no task runs.

    Args:
        on_tick: called every `TIME_LIMIT_TICK_SECONDS` while a task runs, and twice a second otherwise.
    """

    def __init__(self, guards: Sequence[Guard], on_tick: Callable[[], None]) -> None:
        super().__init__(name="fairque-time-limits", daemon=True)
        self._guards = guards
        self._on_tick = on_tick
        self._wakeup = Wakeup()
        self._idle = False
        self._ended = False
        self._next_report = 0.0

    def run(self) -> None:
        while not self._ended:
            now, next_limit = monotonic(), math.inf
            for guard in self._guards:
                deadline = guard.deadline
                if 0 < deadline <= now:
                    guard.interrupt(SoftTimeLimitExceeded, started=guard.started)
                elif deadline:
                    next_limit = min(next_limit, deadline)
            self._tick()
            self._idle = next_limit == math.inf
            self._wakeup.wait(
                10 * TIME_LIMIT_TICK_SECONDS if self._idle else min(TIME_LIMIT_TICK_SECONDS, next_limit - now)
            )

    def _tick(self) -> None:
        try:
            self._on_tick()
        except BaseException:  # noqa: BLE001 - without this thread no time limit would count any more
            now = monotonic()
            if now >= self._next_report:
                self._next_report = now + TICK_REPORT_SECONDS
                logger.exception("the checks of a worker process failed; its tasks go on, and the checks are repeated")

    def begin(self) -> None:
        """Wake the thread, because a task is about to run."""
        if self._idle:
            self._wakeup.notify()

    def end(self) -> None:
        self._ended = True
        self._wakeup.notify()


BYTES_PER_MB = 2**20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def has_proc() -> bool:
    """Return whether /proc has an entry of this process. Some containers have no /proc."""
    return Path("/proc/self/statm").exists()


def resident_mb(pid: int | None = None) -> float:
    """Return the megabytes that a process uses in RAM; by default this process. Without /proc, return the highest use
    of this process so far, and 0 for another process.
    """
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_bytes().split()[1])
    except OSError:
        if pid not in (None, os.getpid()):
            return 0.0
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return highest / (2**20 if sys.platform == "darwin" else 2**10)
    return pages * _PAGE_BYTES / 2**20


def limit_allocation(size: int) -> None:
    """Let this process allocate at most twice ``size`` more bytes. A single large allocation then raises `MemoryError`, before a
    check of the used memory could notice it. Linux only."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return
    now = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:")), None)
    if now is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = now + 2 * size
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
