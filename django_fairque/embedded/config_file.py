"""The server's configuration file, written anew at each start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
