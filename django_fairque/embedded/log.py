"""``server.log``: the server's own words, and what it last said when it fails."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django_fairque.embedded.config_file import LOG_FILE

if TYPE_CHECKING:
    from django_fairque.embedded.directory import PrivateDirectory

_MAX_LOG_BYTES = 5 * 1024 * 1024
_TAIL_BYTES = 4096
_TAIL_LINES = 12


def open_log(directory: PrivateDirectory) -> int:
    """A descriptor to append to; what grew over 5 MB is put aside as ``server.log.1`` first."""
    fd = directory.open(LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if os.fstat(fd).st_size < _MAX_LOG_BYTES:
        return fd
    os.close(fd)
    os.rename(LOG_FILE, f"{LOG_FILE}.1", src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    return directory.open(LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read_log_tail(directory: PrivateDirectory) -> str:
    """The last lines, indented, after a heading; empty if there are none."""
    try:
        fd = directory.open(LOG_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(max(0, os.fstat(fd).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "".join(["\nthe server's log ends:", *(f"\n  {line}" for line in lines)]) if lines else ""
