"""What a worker's record tells about it."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from typing import TYPE_CHECKING, Any

from django_fairque.conf.version import version
from django_fairque.engine.inspection.pages import UNKNOWN_TASKS
from django_fairque.worker.execution.memory import resident_mb
from django_fairque.worker.options import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.worker.options import WorkerOptions

_process_started_at = time.time()

MAX_UNKNOWN_TASK_NAMES = 20
"""Names of tasks that a worker does not know, in its record."""


def worker_status(*, is_draining: bool, is_stopping: bool) -> str:
    return "stopping" if is_stopping else "quiet" if is_draining else "working"


def worker_info(
    options: WorkerOptions,
    *,
    done: int,
    running: int,
    status: str,
    pid: int | None = None,
    started: float | None = None,
    unknown_tasks: Sequence[str] | None = None,
    blocked_by: str | None = None,
) -> dict[str, str]:
    """The fields of its heartbeat; all text. ``status`` is working, quiet or stopping."""
    # An empty list or text replaces one that was sent before: what is not sent stays in the record.
    blocked = {} if blocked_by is None else {"blocked_by": blocked_by}
    unknown = {} if unknown_tasks is None else {UNKNOWN_TASKS: json.dumps(unknown_tasks[:MAX_UNKNOWN_TASK_NAMES])}
    return {
        "host": socket.gethostname(),
        "pid": str(pid or os.getpid()),
        "started": f"{started or _process_started_at:.3f}",
        "queues": ",".join(options.queues),
        "users": names(options.users),
        "steal": names(options.steal),
        "concurrency": str(options.concurrency),
        "status": status,
        "lease": f"{options.lease_seconds:g}",
        "running": str(running),
        "done": str(done),
        "memory_mb": f"{resident_mb(pid):.0f}",
        "python": platform.python_version(),
        "version": version(),
        **unknown,
        **blocked,
    }


def worker_figures(processes: Sequence[Mapping[str, Any]], slots: int, *, is_healthy: bool) -> dict[str, float]:
    """What is told of a worker by numbers: processes that are ready, tasks that they can and do run, bytes, 1 if healthy."""
    ready = [each for each in processes if each["ready"]]
    return {
        "processes": len(ready),
        "slots": slots * len(ready),
        "slots_busy": sum(int(each["running"]) for each in ready),
        "memory_bytes": sum(float(each["memory_mb"]) for each in processes) * 2**20,
        "healthy": float(is_healthy),
    }
