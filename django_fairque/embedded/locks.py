"""The two locks of an embedded server, and the processes that hold them.

The state of the server is determined by two locks, and not by process ids. Processes are searched only if the server
does not answer. ``start.lock`` is held for a short time by the process that starts or stops the server. ``server.lock``
is held by the server itself: it inherits the descriptor, so the kernel frees the lock when the server's last process
ends. A process id can't show whether the server is running, because ids are reused, a zombie process still has an id,
and each container has its own ids.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from django_fairque.embedded import server_files
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory


if sys.platform != "win32":
    import fcntl


START_LOCK = "start.lock"
SERVER_LOCK = "server.lock"

_POLL_SECONDS = 0.005


def try_lock(directory: PrivateDirectory, name: str) -> int | None:
    """Return a descriptor that now holds the lock, or None if another process holds it."""
    try:
        fd = directory.open(name, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:  # the directory was removed after it was opened
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the file was deleted in the meantime, a lock on it does not exclude other processes.
        if os.fstat(fd).st_nlink and directory.is_current():
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def unlock(fd: int) -> None:
    """Free the lock, even if a child of this process has inherited the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_free(directory: PrivateDirectory, within: float = 0) -> bool:
    """Return whether server.lock is free, or becomes free in the next ``within`` seconds."""
    fd = wait_for_lock(directory, SERVER_LOCK, within)
    if fd is None:
        return False
    unlock(fd)
    return True


def check_inheritable(directory: PrivateDirectory) -> None:
    """Refuse a file system whose locks belong to a process, such as a network file system: a child does not inherit these locks.

    On such a file system, the process that holds the lock gets the same lock again. The caller must hold the lock.
    """
    if is_free(directory):
        raise ConfigurationError(
            f"the file system of {directory.path} hands no lock to a child process (network file systems do not): "
            "keep the server's data on a local disk with embedded:///absolute/dir"
        )


def wait_for_lock(directory: PrivateDirectory, name: str, seconds: float) -> int | None:
    """Call `try_lock` repeatedly until it succeeds, for up to ``seconds``."""
    deadline = time.monotonic() + seconds
    while (fd := try_lock(directory, name)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return fd


_PROC = Path("/proc")
_DELETED = " (deleted)"


def find_lock_holders(directory: PrivateDirectory) -> list[int]:
    """Return the server processes that hold server.lock: the server itself, and a child that rewrites its append-only
    file.
    """
    if not (_PROC / "self/fd").is_dir():
        return _read_pid_file(directory)
    lock = os.stat(SERVER_LOCK, dir_fd=directory.fd, follow_symlinks=False)
    return [pid for pid in _find_servers() if _holds_lock(pid, lock)]


def find_orphans(directory: Path) -> list[int]:
    """Return the servers that still run with this directory although the directory was removed."""
    removed = f"{directory / server_files.DATA_DIRECTORY}{_DELETED}"
    return [pid for pid in _find_servers() if _read_link(pid, "cwd") == removed and _was_started_with(pid, directory)]


def has_other_mounts(pid: int) -> bool:
    """Return whether a process sees other file systems than this process, because it runs in a container or as a
    service with a private /tmp.
    """
    return _read_link(pid, "ns/mnt") != _read_link(os.getpid(), "ns/mnt")


def send_signal(pids: list[int], signal_number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def _find_servers() -> Iterator[int]:
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        # A package upgrade deletes the file of a running program; links of other users' processes can't be read.
        if entry.name.isdecimal() and _read_link(int(entry.name), "exe").removesuffix(_DELETED).endswith("-server"):
            yield int(entry.name)


def _holds_lock(pid: int, lock: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for fd in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(fd.stat(), lock):
                    return True
    return False


def _was_started_with(pid: int, directory: Path) -> bool:
    """Return whether the process was started with the configuration file of this directory, like all servers that this
    package starts.
    """
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(directory / server_files.CONFIG_FILE) in arguments


def _read_link(pid: int, name: str) -> str:
    try:
        return str((_PROC / str(pid) / name).readlink())
    except OSError:
        return ""


def _read_pid_file(directory: PrivateDirectory) -> list[int]:
    """Return the server's process id on systems without /proc. The lock shows whether a server is running, so the check
    of the process's name only protects against a reused process id.
    """
    try:
        with os.fdopen(directory.open(server_files.PID_FILE, os.O_RDONLY), encoding="ascii") as file:
            pid = int(file.read(32))
    except (FileNotFoundError, ValueError):
        return []
    name = subprocess.run(  # noqa: S603 - a number, no shell
        ["ps", "-o", "comm=", "-p", str(pid)],  # noqa: S607 - where ps is differs
        capture_output=True,
        check=False,
        text=True,
    ).stdout.strip()
    return [pid] if name.endswith("-server") else []
