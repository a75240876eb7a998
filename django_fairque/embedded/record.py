"""``server.json``: what was started last. It informs messages and warnings; nothing is decided by it alone."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory

_NAME = "server.json"
_LARGEST = 64 * 1024


@dataclass(frozen=True)
class Record:
    server: str
    version: str
    binary: str
    socket: str


def write(directory: PrivateDirectory, record: Record) -> None:
    directory.replace(_NAME, json.dumps(asdict(record), indent=2).encode())


def read(directory: PrivateDirectory) -> Record | None:
    """The last start's record; None if there is none, or none that can be read."""
    try:
        fd = directory.open(_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        content = file.read(_LARGEST)
    try:
        found = json.loads(content)
        return Record(*(str(found[name]) for name in ("server", "version", "binary", "socket")))
    except (ValueError, TypeError, KeyError):
        return None
