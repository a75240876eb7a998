"""Two locks decide everything; no process id is ever believed.

``start.lock`` is held, briefly, by whoever starts or stops the server. ``server.lock`` is held by the server itself: it
inherits the descriptor, so the kernel frees the lock at the very moment its last process ends. Process ids can't say
that: they are reused, a zombie still has one, and another container counts its own.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import ConfigurationError

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory

START_LOCK = "start.lock"
SERVER_LOCK = "server.lock"

_POLL_SECONDS = 0.005


def try_lock(directory: PrivateDirectory, name: str) -> int | None:
    """The descriptor that holds the lock now, or None if another holds it."""
    try:
        fd = directory.open(name, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:  # the directory itself was removed meanwhile
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was deleted meanwhile keeps nobody out.
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
    """Free the lock, even where a child of this process has inherited the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def is_free(directory: PrivateDirectory, name: str) -> bool:
    return wait_until_free(directory, name, 0)


def check_inheritable(directory: PrivateDirectory, name: str) -> None:
    """Refuse a file system whose locks are owned by a process, as on a network: those pass to no child.

    They show by giving the process that holds the lock the same lock again. The caller holds it.
    """
    if is_free(directory, name):
        raise ConfigurationError(
            f"the file system of {directory.path} hands no lock to a child process (network file systems do not): "
            "keep the server's data on a local disk with embedded:///absolute/dir"
        )


def wait_for_lock(directory: PrivateDirectory, name: str, seconds: float) -> int | None:
    """As `try_lock`, trying again for so long."""
    deadline = time.monotonic() + seconds
    while (fd := try_lock(directory, name)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return fd


def wait_until_free(directory: PrivateDirectory, name: str, seconds: float) -> bool:
    fd = wait_for_lock(directory, name, seconds)
    if fd is None:
        return False
    unlock(fd)
    return True
