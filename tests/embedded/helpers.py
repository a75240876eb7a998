"""The tests of the embedded server use these to examine its processes, its log and its lock from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from redis import Redis

from django_fairque.embedded import EmbeddedServer, find_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent.parent


def wait_until(condition: Callable[[], object], within: float = 15.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def fill(embedded: EmbeddedServer, keys: int = 1) -> None:
    """Write keys, and wait until they are in the server's file: that may be 2 seconds later, while it is synchronized."""
    embedded.ensure()
    with Redis(unix_socket_path=embedded.socket) as redis, redis.pipeline(transaction=False) as pipeline:
        for number in range(keys):
            pipeline.set(f"k{number}", number)
        pipeline.execute()
        wait_until(lambda: not redis.info("persistence").get("aof_buffer_length"))


def servers_of(directory: Path) -> list[int]:
    """The living server processes of this directory: their command line names its configuration.

    A child that saves or rewrites a file keeps its parent's command line until it has written its own title:
    it is no server.
    """
    configuration = str(directory / "valkey.conf")
    parents = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if configuration in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                parents[process.pid] = process.ppid()
    return [pid for pid, parent in parents.items() if parent not in parents]


def only_server_of(directory: Path) -> int:
    (pid,) = servers_of(directory)
    return pid


def starts_in_log(directory: Path) -> int:
    return (directory / "server.log").read_text(errors="replace").count("Server initialized")


def kill(directory: Path) -> int:
    """Kill the server as a crash would. Once this returns it is gone, and perhaps another there already."""
    pid = only_server_of(directory)
    process = psutil.Process(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _has_ended(process))
    return pid


def _has_ended(process: psutil.Process) -> bool:
    """Return whether the last thread has ended, too: only then are the connections of a process closed."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def closing_socket(path: str) -> Iterator[threading.Thread]:
    """Make a socket like that of a killed server: its connections may close before the socket on which it listens, so a
    client can still connect for a moment, but no server answers. The thread ends after the first connection."""
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen()

        def end() -> None:
            listener.accept()[0].close()
            listener.close()

        thread = threading.Thread(target=end)
        thread.start()
        yield thread
        thread.join(15)
        assert not thread.is_alive(), "nobody connected"


def clean_up(embedded: EmbeddedServer) -> None:
    for pid in servers_of(embedded.directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not servers_of(embedded.directory))
    socket_directory = Path(embedded.socket).parent
    if socket_directory != embedded.directory:
        shutil.rmtree(socket_directory, ignore_errors=True)


def program(path: Path, body: str) -> Path:
    """An executable that does `body` in place of the server; `binary` and `arguments` are given to it."""
    path.write_text(
        f"#!{sys.executable} -IS\nimport os, sys\nbinary, arguments = {str(find_binary())!r}, sys.argv[1:]\n{body}\n"
    )
    path.chmod(0o755)
    return path
