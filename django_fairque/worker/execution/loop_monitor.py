"""Notices that an event loop is blocked: one of its coroutines computes, or waits, without ``await``, and no other can go on."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from django_fairque.tasks.errors import stopped
from django_fairque.worker.reporting.log import describe_leases

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

    from django_fairque.engine.model.lease import Lease

LOOP_REQUEST_SECONDS = 0.4
"""Seconds between two requests that the loop is to answer. Only while it has coroutines."""
LOOP_BLOCKED_SECONDS = 0.9
"""Seconds without an answer after which the loop counts as blocked. Checked twice a second, this takes less than 2 seconds."""
MAX_STACK_CHARACTERS = 4_000
"""Characters of a stack that are logged (the end of it, where the blocking call is)."""


class MonitoredCoroutine(Protocol):
    """A coroutine of a loop that is monitored."""

    leases: Sequence[Lease]
    shard_index: int


class LoopHost(Protocol):
    """The owner of a loop that is monitored."""

    @property
    def thread_id(self) -> int:
        """Of the thread that runs the loop (`threading.get_ident`); 0 before there is one."""

    @property
    def is_used(self) -> bool:
        """Whether something runs on the loop, or is to begin."""

    def coroutines(self) -> Sequence[MonitoredCoroutine]: ...

    def give_back_waiting(self) -> None:
        """Give back what has not begun: the loop is blocked. Called by the thread that checks."""

    def resumed(self, seconds: float, culprit: MonitoredCoroutine | None) -> None:
        """The loop goes on after so long. Called by the loop's thread, before anything else runs there."""


@dataclass(frozen=True)
class BlockedLoop:
    """A loop that is blocked. Leases are ``(lane, token)``, of a batch that of its first task."""

    task: str
    """The task that blocks it, as a log line names it; empty if it is not known."""
    stack: str
    seconds: float
    culprit: tuple[int, int] | None
    """None also if the task has ended, and left something running."""
    others: frozenset[tuple[int, int]]
    """Those that can't go on, and are not to be blamed for it."""


class LoopMonitor:
    """Asks a loop to answer, again and again. `check` is called by one thread, which is not the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: LoopHost) -> None:
        self.blocked: BlockedLoop | None = None
        """What `check` has found last."""
        self._loop = loop
        self._host = host
        self._lock = threading.Lock()
        self._requested_at: float | None = None
        """When the request was made (`time.monotonic()`) that the loop has not answered yet."""
        self._next_request = 0.0
        self._is_blocked = False
        self._culprit: MonitoredCoroutine | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether nothing can begin on the loop now. From any thread."""
        return self._is_blocked

    def check(self, now: float) -> bool:
        """Whether `blocked` has changed: the loop is blocked, by another task than before, or goes on."""
        requested_at = self._requested_at
        if requested_at is None:
            self._request_answer(now)
        elif now - requested_at >= LOOP_BLOCKED_SECONDS:
            return self._examine(requested_at, now)
        before = self.blocked
        if before is not None and not self._is_blocked:
            self.blocked = None
            return True
        return False

    def _request_answer(self, now: float) -> None:
        if now >= self._next_request and self._host.is_used:
            self._requested_at, self._next_request = now, now + LOOP_REQUEST_SECONDS
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        """On the loop: it goes on."""
        with self._lock:
            requested_at, self._requested_at = self._requested_at, None
            was_blocked, self._is_blocked = self._is_blocked, False
        if was_blocked and requested_at is not None:
            self._host.resumed(monotonic() - requested_at, self._culprit)

    def _examine(self, requested_at: float, now: float) -> bool:
        frame = sys._current_frames().get(self._host.thread_id)  # noqa: SLF001 - the documented way to another thread's stack
        frames = list(_frames(frame))
        context = context_in(reversed(frames))
        task = asyncio.current_task(self._loop)
        if frame is None or (context is None and task is None):
            return False  # it runs nothing, so this thread is as late as its answer: the machine is busy
        coroutines = self._host.coroutines()
        # Loops of other makers may have no frames of Python.
        owner: Any = getattr(task, "owner", None) if context is None else context.get(stopped)
        culprit = next((each for each in coroutines if each is owner), None)
        with self._lock:
            if self._requested_at != requested_at:
                return False  # it has just answered
            self._is_blocked, self._culprit = True, culprit
        self._host.give_back_waiting()
        lease = None if culprit is None else _key(culprit)
        if self.blocked is not None and self.blocked.culprit == lease:
            return False
        leases = getattr(owner, "leases", ())  # of a task that has ended, if it left something that runs on
        self.blocked = BlockedLoop(
            describe_leases(leases) if leases else "",
            _stack(frames),
            now - requested_at,
            lease,
            frozenset(_key(each) for each in coroutines if each is not culprit),
        )
        return True


def _stack(frames: Sequence[FrameType]) -> str:
    """What runs there, without the frames of the loop itself."""
    lines = traceback.format_stack(frames[0])
    depth = next((index for index, frame in enumerate(frames) if _is_of_a_handle(frame)), len(lines))
    return "".join(lines[-depth:] if depth else lines)[-MAX_STACK_CHARACTERS:].rstrip()


def _is_of_a_handle(frame: FrameType) -> bool:
    return frame.f_code is asyncio.Handle._run.__code__  # noqa: SLF001 - to recognize it, not to call it


def context_in(frames: Iterable[FrameType]) -> Context | None:
    """In which context a loop runs a callback, or the step of a coroutine, if one of these frames does."""
    for frame in frames:
        if _is_of_a_handle(frame):
            handle: Any = frame.f_locals.get("self")
            if sys.version_info >= (3, 12):
                found = handle.get_context()
            else:
                found = getattr(handle, "_context", None)
            if isinstance(found, Context):
                return found
    return None


def _frames(frame: FrameType | None) -> Iterable[FrameType]:
    """This frame and those that led to it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _key(coroutine: MonitoredCoroutine) -> tuple[int, int]:
    return coroutine.shard_index, coroutine.leases[0].token
