"""The process that children are forked from: it has loaded the project, has no threads, and runs no task.

It is a fork of its supervisor, which has loaded the project, if that has no threads and connections yet; else it is started
as a child is (`multiprocessing`'s spawn, with its path, arguments and environment), and loads it. Then it waits for
requests. A forked child returns from `serve` and goes on as a spawned one, to
the end of the interpreter, so that exit handlers run. It ends with its supervisor, and its children with it.

Messages are JSON, one a packet. The supervisor sends a worker's id and whether it is for one task, with the files of its board
and of its line; it is
told ``["ready", threads, connections]`` once (what speaks against forking), ``["forked", pid]`` with a file that stands
for the process, ``["ended", pid, code]``.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque.worker.execution.status_board import StatusBoard
from django_fairque.worker.supervisor import child_main as child
from django_fairque.worker.supervisor import project_loading as loading

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.worker.options import WorkerOptions

MAX_FORK_MESSAGE_BYTES = 65_536
"""Bytes of a message."""


@dataclass(frozen=True)
class ForkRequest:
    """What a forked child is to be."""

    worker_id: str
    one_task: bool
    status_board: int
    pipe: int


def run_fork_server(
    options: WorkerOptions,
    shard_count: int,
    connection: socket.socket,
    supervisor: int,
    load: Callable[[WorkerOptions], None] = loading.load_project,
) -> None:
    """The whole life of the server; in a forked process, that of a child. ``load`` what is to be loaded first."""
    child.ignore_terminal_signals()
    # It may reach the whole group, too, and children without their parent would die.
    child_handlers = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_IGN)}
    child.die_with(supervisor)
    inherited = stream_sockets()
    _load_safely(options, load)
    server = _ForkLoop(connection, child_handlers)
    server.send(["ready", other_threads(), [peer for file, peer in stream_sockets().items() if file not in inherited]])
    # What is there now is shared with all children as long as nobody writes to it, as a collection of garbage would.
    gc.collect()
    gc.freeze()
    parent = os.getpid()
    birth = server.serve()
    if birth is None:
        return
    multiprocessing.current_process().name = birth.worker_id
    own = options.for_child(birth.worker_id, one_task=birth.one_task)
    child.run_child(
        own, StatusBoard.in_file(birth.status_board, own.concurrency, shard_count), Connection(birth.pipe), parent
    )


def _load_safely(options: WorkerOptions, load: Callable[[WorkerOptions], None]) -> None:
    try:
        load(options)
        loading.preload(options)
        loading.close_project_connections()
    except Exception:
        logging.basicConfig()
        logging.getLogger("django_fairque.worker").exception(
            "the fork server of worker %s could not begin", options.worker_id
        )
        sys.exit(child.UNUSABLE_EXIT_CODE)


def other_threads() -> list[str] | None:
    """The names of other threads than this one; Python knows none of those that a library in C has started."""
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        return None
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def stream_sockets(*, opened_here: bool = False) -> dict[str, str]:
    """This process's sockets that carry a stream, which two processes would garble: what the kernel calls each, and its
    other end. Datagrams, as to syslog, are whole whoever sends them. ``opened_here``: without those that it was given when it was
    started.
    """
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, as that of this listing is
            name = str(link.readlink())
            if not name.startswith("socket:") or (opened_here and os.get_inheritable(int(link.name))):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as each:
                if each.type != socket.SOCK_DGRAM:
                    found[name] = _peer(each)
    return found


def _peer(each: socket.socket) -> str:
    try:
        address = each.getpeername()
    except OSError:
        return "not connected"
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) or "a socket pair"


def flush_streams() -> None:
    """Before a fork, or both processes write what is left. What is closed is None."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


class _ForkLoop:
    """Forks on request and tells of ends. ``as_before``: the handlers of signals that its children are to have."""

    def __init__(self, connection: socket.socket, child_handlers: dict[signal.Signals, Any]) -> None:
        self._connection = connection
        self._pids: set[int] = set()
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._child_handlers = child_handlers | {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        signal.set_wakeup_fd(self._waker)

    def serve(self) -> ForkRequest | None:
        """None when the supervisor is gone. In a forked process: what it is to be."""
        while True:
            ready, _, _ = select.select([self._connection.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ended()
            if self._connection.fileno() in ready:
                try:
                    message, files, _, _ = socket.recv_fds(
                        self._connection, MAX_FORK_MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC
                    )
                except ConnectionResetError:  # gone before it has heard what was said here
                    return None
                if not message:
                    return None
                birth = ForkRequest(*json.loads(message), *files)
                if self._fork(birth):
                    return birth

    def _fork(self, birth: ForkRequest) -> bool:
        """Whether this is the new process."""
        flush_streams()
        pid = os.fork()
        if pid == 0:
            self._become_child()
            return True
        self._pids.add(pid)
        os.close(birth.status_board)
        os.close(birth.pipe)
        # It can't have been buried yet, so this number is its own.
        process = os.pidfd_open(pid)
        self.send(["forked", pid], process)
        os.close(process)
        return False

    def _become_child(self) -> None:
        """Be a process of one's own, with nothing of the server."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._child_handlers.items():
            signal.signal(number, handler)
        self._connection.close()
        os.close(self._woken)
        os.close(self._waker)

    def _report_ended(self) -> None:
        """Tell of those that have ended. Processes that the project started at import are not asked for."""
        for pid in list(self._pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._pids.discard(pid)
                self.send(["ended", pid, os.waitstatus_to_exitcode(status)])

    def send(self, message: list[Any], *files: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # nobody listens any more: `serve` sees that too
            socket.send_fds(self._connection, [json.dumps(message).encode()], files)
