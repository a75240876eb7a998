"""The fork server as its supervisor sees it, and the children that come from it. Linux only."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import socket
import sys
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.worker.execution.status_board import StatusBoard
from django_fairque.worker.supervisor import fork_server as forkserver

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext, SpawnProcess

    from django_fairque.worker.options import WorkerOptions

FORK_TIMEOUT_SECONDS = 5.0
"""Seconds that it has for a fork; it takes milliseconds."""
EXIT_CODE_TIMEOUT_SECONDS = 1.0
"""Seconds for which it is asked with what code a process ended. It may be dead itself."""
FORK_SERVER_EXIT_SECONDS = 2.0


class ForkServerGoneError(Exception):
    """The fork server is dead or does not answer. Caught by the supervisor, which starts another."""


def can_fork() -> bool:
    """Whether this system has what it takes: files that stand for processes (Linux 5.3). A sandbox may refuse any of it."""
    if not (hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")):
        return False
    try:
        process = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(process, 0)
        finally:
            os.close(process)
        os.close(os.memfd_create("fairque-status-board"))
    except OSError:
        return False
    return True


def may_be_copied() -> bool:
    """Whether a fork of this process would be whole: it has no threads, and talks to nobody that it has called itself (what it
    was given when it was started is inheritable).
    """
    return forkserver.other_threads() is None and not forkserver.stream_sockets(opened_here=True)


class _CopiedProcess:
    """A fork of this process, as `multiprocessing.Process` would be."""

    def __init__(self, main: Callable[[], None], name: str) -> None:
        forkserver.flush_streams()
        self.pid = os.fork()
        if self.pid == 0:
            multiprocessing.current_process().name = name
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)  # as a spawned one has it
            os.close(nothing)
            main()
            sys.exit()  # through the command that made it, so that exit handlers run
        # It can't have been buried yet, so this number is its own.
        self._file = os.pidfd_open(self.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._file, signal.SIGKILL)

    def join(self, seconds: float | None = None) -> None:
        watch = select.poll()
        watch.register(self._file, select.POLLIN)
        if watch.poll(None if seconds is None else seconds * 1000):
            with contextlib.suppress(ChildProcessError):  # it was buried before
                os.waitpid(self.pid, 0)

    def close(self) -> None:
        os.close(self._file)


class ForkServer:
    """Starts at once, in the main thread; can fork as soon as it is ready. A copy of this process if that is possible."""

    def __init__(self, context: SpawnContext, options: WorkerOptions, shard_count: int, *, copy: bool = False) -> None:
        self._options, self._shard_count = options, shard_count
        self._connection, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name, supervisor = f"{options.worker_id}.forkserver", os.getpid()
        if copy:

            def main() -> None:
                self._connection.close()
                forkserver.run_fork_server(options, shard_count, far_end, supervisor, lambda _: None)

            self._process: _CopiedProcess | SpawnProcess = _CopiedProcess(main, name)
        else:
            self._process = context.Process(
                target=forkserver.run_fork_server, args=(options, shard_count, far_end, supervisor), name=name
            )
            self._process.start()
        far_end.close()
        self.started_at = monotonic()
        self.is_ready = False
        self.is_gone = False
        self.threads: list[str] | None = None
        """What it can't be forked for: names of threads, as far as they are known; None when there are none."""
        self.connections: list[str] = []
        """What the project opened at import and has not closed: with whom."""
        self.children: set[int] = set()
        """Process ids of those that have not ended."""
        self._exit_codes: dict[int, int] = {}
        self._new_child: tuple[int, int] | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def fork(self, options: WorkerOptions, pipe: Connection) -> tuple[StatusBoard, ForkedProcess]:
        """A new child.

        Raises:
            ForkServerGoneError: there is none.
        """
        memory = os.memfd_create("fairque-status-board")
        try:
            os.ftruncate(memory, StatusBoard.size(options.concurrency, self._shard_count))
            status_board = StatusBoard.in_file(os.dup(memory), options.concurrency, self._shard_count)
            message = json.dumps([options.worker_id, options.one_task]).encode()
            socket.send_fds(self._connection, [message], [memory, pipe.fileno()])
        except OSError as error:
            self.is_gone = True
            raise ForkServerGoneError from error
        finally:
            os.close(memory)
        self._read_until(lambda: self._new_child is not None, FORK_TIMEOUT_SECONDS)
        if self._new_child is None:
            self.is_gone = True
            raise ForkServerGoneError
        (pid, file), self._new_child = self._new_child, None
        self.children.add(pid)
        return status_board, ForkedProcess(self, pid, file)

    def read_messages(self) -> None:
        """Take in what it has said, without waiting."""
        self._read_until(lambda: False, 0.0)

    def exit_code_of(self, pid: int) -> int:
        """With what code a process ended that has. Of one whose parent can't tell: that of a kill, as its parent's death is."""
        self._read_until(lambda: pid in self._exit_codes, EXIT_CODE_TIMEOUT_SECONDS)
        self.children.discard(pid)
        return self._exit_codes.pop(pid, -signal.SIGKILL)

    def _read_until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = monotonic() + seconds
        while not (condition() or self.is_gone):
            if not select.select([self._connection], [], [], max(0.0, deadline - monotonic()))[0]:
                return
            self._read_message()

    def _read_message(self) -> None:
        try:
            message, files, _, _ = socket.recv_fds(
                self._connection, forkserver.MAX_FORK_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            message, files = b"", []
        if not message:
            self.is_gone = True
            return
        kind, *fields = json.loads(message)
        if kind == "ready":
            self.is_ready = True
            self.threads, self.connections = fields
        elif kind == "forked":
            self._new_child = fields[0], files[0]
        else:
            self._exit_codes[fields[0]] = fields[1]

    def close(self) -> None:
        """End it; its children, if there still are any, with it."""
        self._connection.close()
        if not self.is_ready or self.is_gone:
            self._process.kill()
        self._process.join(FORK_SERVER_EXIT_SECONDS)
        self._process.kill()
        self._process.join()
        self._process.close()


class ForkedProcess:
    """What of `multiprocessing.Process` a supervisor needs, for a process that is its grandchild."""

    def __init__(self, server: ForkServer, pid: int, file: int) -> None:
        self.pid = pid
        self.sentinel = file
        self._server = server
        self._code: int | None = None
        self._watch = select.poll()
        self._watch.register(file, select.POLLIN)

    @property
    def exitcode(self) -> int | None:
        if self._code is None and self._watch.poll(0):
            self._code = self._server.exit_code_of(self.pid)
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)

    def join(self) -> None:
        """Wait until it has ended, whether or not anybody can tell how."""
        if self._code is None:
            self._watch.poll()

    def close(self) -> None:
        os.close(self.sentinel)
