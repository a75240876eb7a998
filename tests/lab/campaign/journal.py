"""Files that processes tell their doings to: one each, only ever appended to.

A line is with the kernel before a call returns, so the end of its process can't lose it; that of the machine ends the campaign.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.limits import limit_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from django_fairque.engine.model.task import Task


class Journal:
    """Whatever happens to its process, a line is in the file whole or not at all. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts, separators=(",", ":")).encode() + b"\n")


def _places_of(task: Task) -> list[tuple[str, int | None]]:
    """Return the limits of a task, each with the number of tasks that may run at once."""
    return [
        (limit_id_of(limit.key, task.user_id if limit.is_of_user else None), limit.at_once) for limit in task.limits
    ]


def intent(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the line that a producer writes before it pushes these tasks."""
    pushed = [
        [t.task_id, t.name, zlib.crc32(t.payload["args"][1].encode()), bool(t.depends_on), _places_of(t)] for t in tasks
    ]
    return {"what": "invoke", "tasks": pushed, "at": time.time()}


def read(directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of all journals of a directory; within a journal in their order."""
    for path in sorted(directory.iterdir()):
        for line in path.read_text().splitlines():
            yield json.loads(line)


@dataclass(frozen=True)
class ChildName:
    """A process that runs tasks, as its journal's file name tells it."""

    pid: int
    worker: str

    @classmethod
    def of(cls, path: Path) -> ChildName:
        pid, _, worker = path.name.partition("@")
        return cls(int(pid), worker)

    def __str__(self) -> str:
        return f"{self.pid}@{self.worker}"

    @property
    def supervisor(self) -> int:
        """The process id of its supervisor: part of a worker's id."""
        return int(self.worker.rsplit(".", 2)[0].rsplit("-", 2)[1])
