"""The few words spoken with a server over its unix socket: 0.1 ms, and no client library to configure."""

from __future__ import annotations

import enum
import socket
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


class PingResult(enum.Enum):
    PONG = enum.auto()
    LOADING = enum.auto()  # it reads its file, and will be up in a while
    REFUSED = enum.auto()  # another error: a script runs and does not end
    SILENT = enum.auto()  # somebody listens and says nothing: stopped, or about to end
    NOBODY = enum.auto()  # nobody listens, or there is no socket


class ReplyError(Exception):
    """The server answered with an error."""


def ping(path: Path, timeout: float) -> PingResult:
    try:
        send_command(path, "PING", timeout=timeout)
    except ReplyError as error:
        return PingResult.LOADING if str(error).startswith("LOADING") else PingResult.REFUSED
    except (FileNotFoundError, ConnectionRefusedError):
        return PingResult.NOBODY
    except OSError:  # a time-out, a connection that broke
        return PingResult.SILENT
    return PingResult.PONG


def read_info(path: Path, timeout: float) -> dict[str, str]:
    """All fields of INFO and, as `appendfsync`, the policy it runs with."""
    lines = send_command(path, "INFO", timeout=timeout).splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    name, _, value = send_command(path, "CONFIG", "GET", "appendfsync", timeout=timeout).partition("\n")
    return {**fields, name: value}


def send_command(path: Path, *words: str, timeout: float) -> str:
    """Send one command and read its reply; the items of an array come one a line.

    Raises
    ------
    ReplyError
        The server refused.
    OSError
        There was no whole answer in time.
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
