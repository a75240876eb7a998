"""What a worker's record tells about it."""

from __future__ import annotations

import os
import platform
import socket
import time
from functools import cache
from typing import TYPE_CHECKING

from .memory import resident_mb
from .options import names

if TYPE_CHECKING:
    from .options import WorkerOptions

_started = time.time()


@cache
def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("django-fairque")
    except PackageNotFoundError:
        return "unknown"


def status_of(*, is_quiet: bool, is_stopping: bool) -> str:
    return "stopping" if is_stopping else "quiet" if is_quiet else "working"


def worker_info(
    options: WorkerOptions,
    *,
    done: int,
    running: int,
    status: str,
    pid: int | None = None,
    started: float | None = None,
) -> dict[str, str]:
    """The fields of its heartbeat; all text. ``status`` is working, quiet or stopping."""
    return {
        "host": socket.gethostname(),
        "pid": str(pid or os.getpid()),
        "started": f"{started or _started:.3f}",
        "queues": ",".join(options.queues),
        "users": names(options.users),
        "steal": names(options.steal),
        "concurrency": str(options.slots),
        "status": status,
        "lease": f"{options.lease:g}",
        "running": str(running),
        "done": str(done),
        "memory_mb": f"{resident_mb(pid):.0f}",
        "python": platform.python_version(),
        "version": version(),
    }
