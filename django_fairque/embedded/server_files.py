"""The files in the server's directory: its configuration, its log, and the record of its last start.

The configuration file is written at each start. ``server.json`` records the last start. Messages and warnings use this
record, but no decision depends on it alone.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.embedded.directory import PrivateDirectory

CONFIG_FILE = "valkey.conf"
LOG_FILE = "server.log"
PID_FILE = "server.pid"
DATA_DIRECTORY = "data"


def render_config(directory: Path, socket: Path, appendfsync: str) -> bytes:
    options = {
        "daemonize": "yes",
        "supervised": "no",
        # There is no TCP port, so only the permissions of the socket control access.
        "port": "0",
        "unixsocket": quote_path(socket),
        "unixsocketperm": "600",
        # Without this line, a daemon writes /var/run/valkey.pid.
        "pidfile": quote_path(directory / PID_FILE),
        "logfile": quote_path(directory / LOG_FILE),
        "dir": quote_path(directory / DATA_DIRECTORY),
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "aof-load-truncated": "yes",
        # Every Valkey, and Redis from 7.0 on, can read a file that contains only commands. A file that begins with a
        # snapshot is not so portable.
        "aof-use-rdb-preamble": "no",
        "auto-aof-rewrite-percentage": "100",
        "auto-aof-rewrite-min-size": "64mb",
        "save": '""',
        # Evicting a key would lose a task, so the server must not evict keys.
        "maxmemory-policy": "noeviction",
        "databases": "16",
        "timeout": "0",
        # Without a process title, the server shows in `ps` with the path of its configuration file, and so
        # with its directory.
        "set-proc-title": "no",
        "latency-monitor-threshold": "100",
        "locale-collate": "C",
    }
    return "".join(f"{name} {value}\n" for name, value in options.items()).encode("ascii")


def quote_path(path: Path) -> str:
    """Return the path in double quotes. Every byte that is not plain ASCII is written as ``\\xHH``."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


_MAX_LOG_BYTES = 5 * 1024 * 1024
_TAIL_BYTES = 4096
_TAIL_LINES = 12


def open_log(directory: PrivateDirectory) -> int:
    """Open the log for appending. A log over 5 MB is renamed to ``server.log.1`` first."""
    fd = directory.open(LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if os.fstat(fd).st_size < _MAX_LOG_BYTES:
        return fd
    os.close(fd)
    os.rename(LOG_FILE, f"{LOG_FILE}.1", src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    return directory.open(LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def read_log_tail(directory: PrivateDirectory) -> str:
    """Return the last lines of the log, indented, after a heading; empty if the log has no lines."""
    try:
        fd = directory.open(LOG_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    with os.fdopen(fd, "rb") as file:
        file.seek(max(0, os.fstat(fd).st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    return "".join(["\nthe server's log ends:", *(f"\n  {line}" for line in lines)]) if lines else ""


_RECORD_FILE = "server.json"
_MAX_RECORD_BYTES = 64 * 1024


def write_record(directory: PrivateDirectory, *, server: str, version: str, binary: str, socket: str) -> None:
    record = {"server": server, "version": version, "binary": binary, "socket": socket}
    directory.replace(_RECORD_FILE, json.dumps(record, indent=2).encode())


def read_record(directory: PrivateDirectory) -> dict[str, str]:
    """Return the arguments of `write_record` at the last start; empty if there is no readable record."""
    try:
        fd = directory.open(_RECORD_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return {}
    with os.fdopen(fd, "rb") as file:
        content = file.read(_MAX_RECORD_BYTES)
    try:
        found = json.loads(content)
        return {name: str(found[name]) for name in ("server", "version", "binary", "socket")}
    except (ValueError, TypeError, KeyError):
        return {}
