"""A `fairque_worker` of one's own, which ends when its ``with`` block does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .children import Child

if TYPE_CHECKING:
    from pathlib import Path


class Worker(Child):
    """`processes` processes that run one task at a time each. It is ready when each of them can take tasks."""

    what = "the worker"

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def arguments(self, directory: Path) -> list[str]:
        self._health = directory / "health.json"
        processes = ["--processes", str(self._processes), "--concurrency", "1"]
        return ["fairque_worker", *processes, "--health-file", str(self._health)]

    def is_ready(self) -> bool:
        if not self._health.exists():
            return False
        processes = json.loads(self._health.read_text()).get("processes", [])
        return len([process for process in processes if process["ready"]]) == self._processes
