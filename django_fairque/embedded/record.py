"""``server.json``: what was started last. It informs messages and warnings; nothing is decided by it alone."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory

_RECORD_FILE = "server.json"
_MAX_RECORD_BYTES = 64 * 1024


@dataclass(frozen=True)
class StartRecord:
    server: str
    version: str
    binary: str
    socket: str


def write_record(directory: PrivateDirectory, record: StartRecord) -> None:
    directory.replace(_RECORD_FILE, json.dumps(asdict(record), indent=2).encode())


def read_record(directory: PrivateDirectory) -> StartRecord | None:
    """The last start's record; None if there is none, or none that can be read."""
    try:
        fd = directory.open(_RECORD_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        content = file.read(_MAX_RECORD_BYTES)
    try:
        found = json.loads(content)
        return StartRecord(*(str(found[name]) for name in ("server", "version", "binary", "socket")))
    except (ValueError, TypeError, KeyError):
        return None
