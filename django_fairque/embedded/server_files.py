"""The files in the server's directory: its configuration, its log, and the record of its last start.

The configuration file is written at each start. ``server.json`` records the last start; messages and warnings use it, but no
decision depends on it alone.
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
        # The permissions of the socket are the authentication: no TCP port at all.
        "port": "0",
        "unixsocket": quote_path(socket),
        "unixsocketperm": "600",
        # Without it a daemon writes /var/run/valkey.pid.
        "pidfile": quote_path(directory / PID_FILE),
        "logfile": quote_path(directory / LOG_FILE),
        "dir": quote_path(directory / DATA_DIRECTORY),
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "aof-load-truncated": "yes",
        # A file of commands only is read by every Valkey and by Redis from 7.0 on; one with a snapshot in front is not.
        "aof-use-rdb-preamble": "no",
        "auto-aof-rewrite-percentage": "100",
        "auto-aof-rewrite-min-size": "64mb",
        "save": '""',
        # Evicting a key would lose a task.
        "maxmemory-policy": "noeviction",
        "databases": "16",
        "timeout": "0",
        # `ps` then shows the path of this file, and so whose server it is.
        "set-proc-title": "no",
        "latency-monitor-threshold": "100",
        "locale-collate": "C",
    }
    return "".join(f"{name} {value}\n" for name, value in options.items()).encode("ascii")


def quote_path(path: Path) -> str:
    """The path in double quotes, every byte that is not plain ASCII written as ``\\xHH``."""
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
    """The last lines, indented, after a heading; empty if there are none."""
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
    """The arguments of `write_record` at the last start; empty if there is no record, or none that can be read."""
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
