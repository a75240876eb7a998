"""Which processes hold the server's lock: asked only when the server itself does not answer."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from django_fairque.embedded import config_file, locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.embedded.directory import PrivateDirectory

_PROC = Path("/proc")
_DELETED = " (deleted)"


def find_lock_holders(directory: PrivateDirectory) -> list[int]:
    """Servers of ours that hold server.lock: the server, and a child that rewrites its file."""
    if not (_PROC / "self/fd").is_dir():
        return _read_pid_file(directory)
    lock = os.stat(locks.SERVER_LOCK, dir_fd=directory.fd, follow_symlinks=False)
    return [pid for pid in _find_servers() if _holds_lock(pid, lock)]


def find_orphans(directory: Path) -> list[int]:
    """Servers that still run in this place after somebody removed the directory under them."""
    deserted = f"{directory / config_file.DATA_DIRECTORY}{_DELETED}"
    return [pid for pid in _find_servers() if _read_link(pid, "cwd") == deserted and _was_started_with(pid, directory)]


def has_other_mounts(pid: int) -> bool:
    """Whether the process sees other file systems than we do: a container, a service with a /tmp of its own."""
    return _read_link(pid, "ns/mnt") != _read_link(os.getpid(), "ns/mnt")


def send_signal(pids: list[int], signal_number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def _find_servers() -> Iterator[int]:
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        # A package upgrade deletes the file that still runs; other people's links can't be read.
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
    """Whether the process got the configuration file of this directory, as servers do that we start."""
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.fsencode(directory / config_file.CONFIG_FILE) in arguments


def _read_link(pid: int, name: str) -> str:
    try:
        return str((_PROC / str(pid) / name).readlink())
    except OSError:
        return ""


def _read_pid_file(directory: PrivateDirectory) -> list[int]:
    """For systems without /proc. The lock says that a server lives, so this only guards against a reused number."""
    try:
        with os.fdopen(directory.open(config_file.PID_FILE, os.O_RDONLY), encoding="ascii") as file:
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
