"""Files that processes tell their doings to: one each, only ever appended to, on the disk before a call returns."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Journal:
    """Whatever happens to its process, a line is in the file whole or not at all. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)

    def write(self, **facts: Any) -> None:
        os.write(self._file, json.dumps(facts, separators=(",", ":")).encode() + b"\n")
        os.fsync(self._file)


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
