"""Copies of a process that runs tasks: a task that calls `os.fork()` makes one.

A copy must not outlive the worker, and must not continue as a worker: it has a copy of the buffer, and would run tasks
a second time. Programs that a task starts (`subprocess`) are not copies, and are not ended here.

The kernel can kill a process when its parent ends (`PR_SET_PDEATHSIG`). But the parent is the thread that forked, which may end
earlier than the worker. So each copy has the read end of a pipe whose write end is open only in the worker process. The copy
requests SIGKILL for the moment when the write end is closed (`F_SETSIG`). The signal arrives whatever the copy is doing. Linux
only.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from django_fairque.engine.model.ids import this_process

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

F_SETSIG = 10
"""Command of `fcntl` that sets which signal is sent for a file with `O_ASYNC`. Python's `fcntl` module has no name for
it."""


class _CopyState:
    ends: tuple[int, int] | None = None
    """The file descriptors of the pipe: the read end and the write end (-1 in copies)."""
    loop: AbstractEventLoop | None = None
    """The event loop of the thread that is forking."""


def end_if_copied(made_in: object) -> None:
    """End this process if it is a copy of the process in which the caller was made (`this_process`). If a task has
    forked, the task's function returns in the copy too.
    """
    if made_in is not this_process.get():
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)


def end_with_this_process() -> None:
    """Make copies of this process, and copies of these copies, end when this process ends."""
    if sys.platform == "linux":
        _CopyState.ends = os.pipe()


def _record_running_loop() -> None:
    with suppress(Exception):
        _CopyState.loop = asyncio.get_running_loop()


def _after_in_parent() -> None:
    _CopyState.loop = None


def _after_in_child() -> None:
    loop, _CopyState.loop = _CopyState.loop, None
    if loop is not None:
        # The coroutine that forked continues in the copy until it awaits. Then the copy ends, before another coroutine
        # continues in it.
        getattr(loop, "_ready", []).clear()
        with suppress(Exception):
            loop.call_soon(os._exit, 0)
    if _CopyState.ends is not None:
        read, write = _CopyState.ends
        with suppress(OSError):
            if write >= 0:
                os.close(write)
            _CopyState.ends = read, -1
            # Open the file again, so that its settings are separate from the settings in other processes.
            own = os.open(f"/proc/self/fd/{read}", os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(own, F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
            watch = select.poll()
            watch.register(own, 0)
            if watch.poll(0):  # the worker process has already ended
                os._exit(1)


os.register_at_fork(before=_record_running_loop, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
