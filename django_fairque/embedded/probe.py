"""Sends a few commands to a server over its Unix socket, without a client library (0.1 ms), and reads the server's
status.
"""

from __future__ import annotations

import enum
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class AofStatus:
    """The state of the append-only file. Sizes are in bytes: ``size`` is the current size, ``base_size`` the size after
    the last rewrite. ``rewriting`` shows whether a rewrite is in progress. ``appendfsync`` is the server's setting.
    ``last_write_ok`` shows whether the last write succeeded. ``delayed_fsyncs`` is the number of syncs that took more
    than 2 s.
    """

    size: int
    base_size: int
    appendfsync: str
    last_write_ok: bool
    rewriting: bool
    delayed_fsyncs: int


@dataclass(frozen=True)
class ServerStatus:
    """The state of the server. If ``running`` is true and ``answers`` is false, the process exists but does not reply;
    then most fields are unknown.

    ``directory`` and ``socket`` are the server's paths, ``pid`` is its process id, ``server`` and ``version`` are its
    product, and ``binary`` is the path of its program. ``clients`` is the number of connected clients. ``uptime`` is in
    seconds, ``memory`` in bytes. ``aof`` is the state of its append-only file. ``notes`` are sentences with
    recommendations.
    """

    running: bool
    directory: Path
    socket: Path
    answers: bool = False
    pid: int | None = None
    server: str = ""
    version: str = ""
    binary: str = ""
    uptime: int | None = None
    clients: int | None = None
    memory: int | None = None
    aof: AofStatus | None = None
    notes: tuple[str, ...] = ()


class PingResult(enum.Enum):
    PONG = enum.auto()
    LOADING = enum.auto()  # the server is reading its file, and will be ready later
    REFUSED = enum.auto()  # another error: a script is running and does not end
    SILENT = enum.auto()  # a process listens and does not reply: it is suspended, or about to end
    NOBODY = enum.auto()  # no process listens, or there is no socket


class ReplyError(Exception):
    """The server replied with an error."""


def ping(path: Path, timeout: float) -> PingResult:
    try:
        send_command(path, "PING", timeout=timeout)
    except ReplyError as error:
        return PingResult.LOADING if str(error).startswith("LOADING") else PingResult.REFUSED
    except (FileNotFoundError, ConnectionRefusedError):
        return PingResult.NOBODY
    except OSError:  # the read timed out, or the connection broke
        return PingResult.SILENT
    return PingResult.PONG


def read_info(path: Path, timeout: float) -> dict[str, str]:
    """Return all fields of INFO and, as `appendfsync`, the server's current policy for syncs."""
    lines = send_command(path, "INFO", timeout=timeout).splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    name, _, value = send_command(path, "CONFIG", "GET", "appendfsync", timeout=timeout).partition("\n")
    return {**fields, name: value}


def status_from_info(unknown: ServerStatus, fields: dict[str, str]) -> ServerStatus:
    """Return the status of a server that answers, from the result of `read_info`."""
    return replace(
        unknown,
        running=True,
        answers=True,
        pid=int(fields["process_id"]),
        server=fields.get("server_name", "redis"),
        # Every Valkey reports redis_version 7.2.4, for clients that read only this field.
        version=fields.get("valkey_version") or fields["redis_version"],
        binary=fields["executable"],
        uptime=int(fields["uptime_in_seconds"]),
        clients=int(fields["connected_clients"]) - 1,  # the connection of this probe is not counted
        memory=int(fields["used_memory"]),
        aof=AofStatus(
            size=int(fields["aof_current_size"]),
            base_size=int(fields["aof_base_size"]),
            appendfsync=fields["appendfsync"],
            last_write_ok=fields["aof_last_write_status"] == "ok",
            rewriting=fields["aof_rewrite_in_progress"] == "1",
            delayed_fsyncs=int(fields["aof_delayed_fsync"]),
        ),
    )


def send_command(path: Path, *words: str, timeout: float) -> str:
    """Send one command and return its reply. The items of an array are separated by line breaks.

    Raises
    ------
    ReplyError
        The server refused the command.
    OSError
        The server did not send a complete reply in time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        parts = [f"${len(word)}\r\n{word}\r\n" for word in words]
        connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
        with connection.makefile("rb") as stream:
            return _read_reply(stream)


def _read_reply(stream: BinaryIO) -> str:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionResetError("the server closed the connection before it answered")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise ReplyError(rest)
    if kind == b"$":
        return stream.read(int(rest) + 2)[:-2].decode(errors="surrogateescape")
    if kind == b"*":
        return "\n".join(_read_reply(stream) for _ in range(int(rest)))
    return rest
