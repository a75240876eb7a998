"""Starts worker processes. A process is either spawned, or forked from a process that has loaded the project (the fork
server).

The fork server starts at once if it can be a copy of the supervisor, which saves loading the project again. Otherwise
it starts when the first worker process is needed. A new fork server starts when the last one has died or the project's
code has changed. The earlier server continues until its children have ended, because they would die with it.

The fork server has no threads, runs no task, and waits for requests. A forked child returns from `serve` and then
continues like a spawned child until the interpreter exits, so that exit handlers run. The server ends when its
supervisor ends, and the children end when the server ends.

Messages are JSON, one in each packet. The supervisor sends a worker's id and whether it is for one task, with the files of its
status board and of its pipe. The server sends ``["ready", threads, connections]`` once (the obstacles to forking), ``["forked",
pid]`` with a file that stands for the process, and ``["ended", pid, code]``. Linux only.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.worker.common.limits import has_proc
from django_fairque.worker.common.log import logger
from django_fairque.worker.common.status_board import StatusBoard
from django_fairque.worker.supervisor import child_main

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext, SpawnProcess

    from django_fairque.worker.common.options import WorkerOptions


MAX_FORK_MESSAGE_BYTES = 65_536
"""Maximum bytes of a message."""


def run_fork_server(
    options: WorkerOptions,
    shard_count: int,
    connection: socket.socket,
    supervisor: int,
    load: Callable[[WorkerOptions], None] = child_main.load_project,
) -> None:
    """Run the fork server until it ends; in a forked process, run the child. ``load`` is called first, to load the
    project.
    """
    child_main.ignore_terminal_signals()
    # Ignore SIGTERM, which may be sent to the whole process group. If it ended the fork server, the children would die
    # too.
    child_handlers = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_IGN)}
    child_main.end_with_parent(supervisor)
    inherited = stream_sockets()
    try:
        load(options)
        child_main.preload(options)
        child_main.close_project_connections()
    except Exception:  # noqa: BLE001 - whatever the project raises
        logging.basicConfig()
        logger.exception("the fork server of worker %s could not begin", options.worker_id)
        sys.exit(child_main.UNUSABLE_EXIT_CODE)
    server = _ForkLoop(connection, child_handlers)
    server.send(["ready", other_threads(), [peer for file, peer in stream_sockets().items() if file not in inherited]])
    child_main.freeze_loaded_objects()  # a garbage collection would write to memory that all children share
    parent = os.getpid()
    request = server.serve()
    if request is None:
        connection.close()
        return
    worker_id, one_task, status_board, pipe = request
    multiprocessing.current_process().name = worker_id
    own = options.for_child(worker_id, one_task=one_task)
    shared = StatusBoard.in_file(status_board, own.concurrency, shard_count)
    child_main.run_child(own, shared, Connection(pipe), parent)


def other_threads() -> list[str] | None:
    """Return the names of all threads except the calling thread. Threads that a C library has started are not included,
    because Python does not know them.
    """
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        return None
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def stream_sockets(*, opened_here: bool = False) -> dict[str, str]:
    """Return this process's stream sockets: the kernel's name of each socket, with the address of its peer.

    Two processes that write to one stream socket would mix their data. Datagram sockets, such as to syslog, can be shared.

    Args:
        opened_here: leave out the sockets that this process was given when it was started.
    """
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the file has been closed, such as the one of this listing
            name = str(link.readlink())
            if not name.startswith("socket:") or (opened_here and os.get_inheritable(int(link.name))):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                if connection.type != socket.SOCK_DGRAM:
                    found[name] = _peer(connection)
    return found


def _peer(connection: socket.socket) -> str:
    try:
        address = connection.getpeername()
    except OSError:
        return "not connected"
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return os.fsdecode(address) or "a socket pair"


def flush_streams() -> None:
    """Flush standard output and error before a fork; otherwise both processes write the buffered text. A stream that is
    closed may be None.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


class _ForkLoop:
    """Forks on request and reports when children have ended. ``child_handlers``: the signal handlers that the children
    get.
    """

    def __init__(self, connection: socket.socket, child_handlers: dict[signal.Signals, Any]) -> None:
        self._connection = connection
        self._pids: set[int] = set()
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        self._child_handlers = child_handlers | {signal.SIGCHLD: signal.signal(signal.SIGCHLD, lambda *_: None)}
        signal.set_wakeup_fd(self._waker)

    def serve(self) -> tuple[str, bool, int, int] | None:
        """Serve requests until the supervisor has ended, then return None. In a forked process, return the child's
        data: its worker id, whether it runs only one task, and the files of its status board and of its pipe.
        """
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
                except ConnectionResetError:  # the supervisor has ended and did not read the last messages
                    return None
                if not message:
                    return None
                if self._fork(files):
                    worker_id, one_task = json.loads(message)
                    return worker_id, one_task, *files

    def _fork(self, files: list[int]) -> bool:
        """Fork a child. Return True in the child, which closes the server's files."""
        flush_streams()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number, handler in self._child_handlers.items():
                signal.signal(number, handler)
            self._connection.close()
            os.close(self._woken)
            os.close(self._waker)
            return True
        self._pids.add(pid)
        for file in files:
            os.close(file)
        # The pid still belongs to this child, because the server has not waited for it yet.
        process = os.pidfd_open(pid)
        self.send(["forked", pid], process)
        os.close(process)
        return False

    def _report_ended(self) -> None:
        """Report the children that have ended. Child processes that the project started at import are ignored."""
        for pid in list(self._pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._pids.discard(pid)
                self.send(["ended", pid, os.waitstatus_to_exitcode(status)])

    def send(self, message: list[Any], *files: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the supervisor has ended, which `serve` notices too
            socket.send_fds(self._connection, [json.dumps(message).encode()], files)


FORK_TIMEOUT_SECONDS = 5.0
"""Seconds that the fork server has to answer a request to fork. A fork takes milliseconds."""
EXIT_CODE_TIMEOUT_SECONDS = 1.0
"""Seconds to wait for the fork server's message with the exit code of a child. The fork server may be dead too."""
FORK_SERVER_EXIT_SECONDS = 2.0


class ForkServerGoneError(Exception):
    """Raised when the fork server is dead or does not answer. The supervisor catches this error and starts another fork
    server.
    """


def can_fork() -> bool:
    """Return whether this system supports pidfds and memory files (Linux 5.3). A sandbox may refuse either."""
    try:
        process = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(process, 0)
        finally:
            os.close(process)
        os.close(os.memfd_create("fairque-status-board"))
    except (AttributeError, OSError):
        return False
    return True


class _FileProcess:
    """The methods of `multiprocessing.Process` that a supervisor needs, for a process that a pidfd represents."""

    def __init__(self, pid: int, file: int) -> None:
        self.pid = pid
        self.sentinel = file
        self._watch = select.poll()
        self._watch.register(file, select.POLLIN)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)

    def join(self, seconds: float | None = None) -> None:
        """Wait until the process has ended, even if its exit code remains unknown."""
        self._watch.poll(None if seconds is None else seconds * 1000)

    def close(self) -> None:
        os.close(self.sentinel)


class _CopiedProcess(_FileProcess):
    """A process that is a fork of this process."""

    def __init__(self, main: Callable[[], None], name: str) -> None:
        flush_streams()
        pid = os.fork()
        if pid == 0:
            multiprocessing.current_process().name = name
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)  # like a spawned process, this process has no standard input
            os.close(nothing)
            main()
            sys.exit()  # exit through the calling command, so that exit handlers run
        # this process has not waited for the child yet, so the pid still belongs to it
        super().__init__(pid, os.pidfd_open(pid))

    def join(self, seconds: float | None = None) -> None:
        super().join(seconds)
        with suppress(ChildProcessError):  # another call has waited for the child before
            os.waitpid(self.pid, os.WNOHANG)


class ForkServer:
    """A process that forks worker processes. The constructor starts it, in the main thread; `fork` works as soon as the
    server is ready. If possible, the server is a copy of this process.
    """

    def __init__(self, context: SpawnContext, options: WorkerOptions, shard_count: int, *, copy: bool = False) -> None:
        self._options, self._shard_count = options, shard_count
        self._connection, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name, supervisor = f"{options.worker_id}.forkserver", os.getpid()
        if copy:

            def main() -> None:
                self._connection.close()
                run_fork_server(options, shard_count, far_end, supervisor, lambda _: None)

            self._process: _CopiedProcess | SpawnProcess = _CopiedProcess(main, name)
        else:
            self._process = context.Process(
                target=run_fork_server, args=(options, shard_count, far_end, supervisor), name=name
            )
            self._process.start()
        far_end.close()
        self.started_at = monotonic()
        self.is_ready = False
        self.is_gone = False
        self.threads: list[str] | None = None
        """Names of threads that prevent forking, as far as Python knows them; None if there are none."""
        self.connections: list[str] = []
        """Peers of the connections that the project opened at import and has not closed."""
        self.children: set[int] = set()
        """Process ids of the children that have not ended."""
        self._exit_codes: dict[int, int] = {}
        self._new_child: tuple[int, int] | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    def fork(self, options: WorkerOptions, pipe: Connection) -> tuple[StatusBoard, ForkedProcess]:
        """Fork a child.

        Raises:
            ForkServerGoneError: the fork server is dead or does not answer.
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
        self.read_messages(lambda: self._new_child is not None, FORK_TIMEOUT_SECONDS)
        if self._new_child is None:
            self.is_gone = True
            raise ForkServerGoneError
        (pid, file), self._new_child = self._new_child, None
        self.children.add(pid)
        return status_board, ForkedProcess(self, pid, file)

    def get_exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process that has ended; None if the fork server can't report it."""
        self.read_messages(lambda: pid in self._exit_codes, EXIT_CODE_TIMEOUT_SECONDS)
        self.children.discard(pid)
        return self._exit_codes.pop(pid, None)

    def read_messages(self, condition: Callable[[], bool] = lambda: False, seconds: float = 0.0) -> None:
        """Read messages until ``condition`` returns True, for up to ``seconds``. By default, read only the messages
        that have already arrived.
        """
        deadline = monotonic() + seconds
        while not (condition() or self.is_gone):
            if not select.select([self._connection], [], [], max(0.0, deadline - monotonic()))[0]:
                return
            try:
                message, files, _, _ = socket.recv_fds(
                    self._connection, MAX_FORK_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
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
        """End the fork server. Its remaining children end too."""
        self._connection.close()
        if not self.is_ready or self.is_gone:
            self._process.kill()
        self._process.join(FORK_SERVER_EXIT_SECONDS)
        self._process.kill()
        self._process.join()
        self._process.close()


class ForkedProcess(_FileProcess):
    """A worker process that the fork server has forked: a grandchild of this process."""

    def __init__(self, server: ForkServer, pid: int, file: int) -> None:
        super().__init__(pid, file)
        self._server = server
        self._code: int | None = None
        self.died_with_server = False

    @property
    def exitcode(self) -> int | None:
        if self._code is None and self._watch.poll(0):
            code = self._server.get_exit_code(self.pid)
            self.died_with_server = code is None and self._server.is_gone
            self._code = -signal.SIGKILL if code is None else code  # the children are killed when the fork server dies
        return self._code


class ProcessFactory:
    """Starts worker processes. Used only by the supervisor's main thread, which must call `close` at the end.

    Args:
        copied: whether this process exists only for this worker. Then the existing objects are excluded from garbage
            collections, and the first fork server may be a copy of this process.
    """

    def __init__(self, options: WorkerOptions, shard_count: int, *, copied: bool = False) -> None:
        self._options, self._shard_count = options, shard_count
        self._context = get_context("spawn")
        self._forks = options.start_method != "spawn"
        self._is_fork_required = options.start_method == "forkserver"
        self._server: ForkServer | None = None
        self._former: list[ForkServer] = []
        if copied:
            child_main.freeze_loaded_objects()
        if sys.platform == "linux" and not has_proc():
            self._forks = False
            logger.warning(
                "/proc can't be read: processes are spawned, not forked, their memory is unknown and not limited, and "
                "copies that a task makes with os.fork() may outlive the worker; mount /proc in the worker's container"
            )
        elif self._forks and not can_fork():
            self._spawn_instead(
                "this system can't tell processes apart safely enough (Linux has been able to since 5.3)"
            )
        elif self._forks and copied and other_threads() is None and not stream_sockets(opened_here=True):
            # A copy works correctly, because this process has no threads, and no connection that it has opened itself.
            self._server = ForkServer(self._context, options, shard_count, copy=True)

    @property
    def servers(self) -> list[ForkServer]:
        """Return the fork servers. If one of them becomes readable, call `read_messages`."""
        return [*self._former, *([self._server] if self._server is not None else [])]

    def is_ready(self) -> bool:
        """Return whether a child can be started now. If not, no child can be started until `read_messages` has read a
        message.
        """
        if self._forks and self._server is None:
            self._server = ForkServer(self._context, self._options, self._shard_count)
        return not self._forks or (self._server is not None and self._server.is_ready)

    def start_child(self, options: WorkerOptions) -> tuple[StatusBoard, SpawnProcess | ForkedProcess, Connection]:
        """Start a child process. Return the process, and this side of the pipe to it.

        Raises:
            ForkServerGoneError: the child can't be started now; see `is_ready`.
        """
        near, far = self._context.Pipe()
        try:
            if self._server is not None:
                return *self._server.fork(options, far), near
            status_board = StatusBoard.create_shared(self._context, options.concurrency, self._shard_count)
            process = self._context.Process(
                target=child_main.run_child,
                args=(options, status_board, far, os.getpid(), child_main.load_project),
                name=options.worker_id,
            )
            process.start()
        except ForkServerGoneError:
            near.close()
            raise
        finally:
            far.close()
        return status_board, process, near

    def read_messages(self) -> bool:
        """Read the messages of the fork servers. Return whether a fork server could not start."""
        for fork_server in self.servers:
            fork_server.read_messages()
        for former in [former for former in self._former if former.is_gone or not former.children]:
            self._former.remove(former)
            former.close()
        server = self._server
        if server is None:
            return False
        obstacle, longest = self._find_obstacle(server), self._options.replaced_after
        is_stuck = not server.is_ready and monotonic() - server.started_at >= longest
        if not (obstacle or server.is_gone or is_stuck):
            return False
        self._server = None
        server.close()
        if obstacle:
            self._spawn_instead(obstacle)
            return False
        if not server.is_gone:
            logger.error("the fork server of worker %s has not begun within %g s", self._options.worker_id, longest)
        # the fork server had been ready before it died, so start it again, as after the death of a worker process
        elif server.is_ready:
            logger.error("the fork server of worker %s died, and its processes with it", self._options.worker_id)
        return not server.is_ready

    def _find_obstacle(self, server: ForkServer) -> str:
        """Return the reason why this server must not fork, or an empty text. Open connections are no reason if the
        options require forks: then the project must ensure that they are safe.
        """
        if server.threads is not None:
            known = f" ({', '.join(server.threads)})" if server.threads else ""
            return f"the project has started threads{known}, which no forked process would have"
        if server.connections and not self._is_fork_required:
            known = ", ".join(server.connections)
            return f"importing the project opened connections ({known}), which all forked processes would share"
        return ""

    def renew(self) -> None:
        """Make children that start from now on use the current code of the project."""
        if self._server is not None:
            self._former.append(self._server)
            self._server = None

    def close(self) -> None:
        """Close the fork servers after all children have ended. Repeated calls do nothing."""
        servers = self.servers
        self._server, self._former = None, []
        for server in servers:
            server.close()

    def _spawn_instead(self, why: str) -> None:
        self._forks = False
        if self._is_fork_required:
            logger.warning("processes are spawned, although START_METHOD is forkserver: %s", why)
        else:
            logger.info("processes are spawned, not forked: %s", why)
