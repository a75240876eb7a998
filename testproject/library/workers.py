"""A `fairque_worker` of one's own, which ends when its ``with`` block does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .children import Child

if TYPE_CHECKING:
    from pathlib import Path


class Worker(Child):
    """``processes`` processes that run ``concurrency`` tasks at a time each. It is ready when each of them can take tasks.

    Running tasks may go on for ``shutdown_timeout`` seconds after the end; None for the configured time.
    """

    what = "the worker"

    def __init__(self, processes: int, concurrency: int = 1, shutdown_timeout: int | None = None) -> None:
        self._processes = processes
        self._concurrency = concurrency
        self._shutdown_timeout = shutdown_timeout

    def arguments(self, directory: Path) -> list[str]:
        self._health = directory / "health.json"
        processes = ["--processes", str(self._processes), "--concurrency", str(self._concurrency)]
        return ["fairque_worker", *processes, "--health-file", str(self._health)]

    def environment(self) -> dict[str, str]:
        if self._shutdown_timeout is None:
            return {}
        return {"FAIRQUE_WORKER__SHUTDOWN_TIMEOUT": str(self._shutdown_timeout)}

    def is_ready(self) -> bool:
        if not self._health.exists():
            return False
        processes = json.loads(self._health.read_text()).get("processes", [])
        return len([process for process in processes if process["ready"]]) == self._processes
