"""`ServerSite`: the directory, the socket and the options of a server, and the ``embedded://`` URL that names them."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from django_fairque.embedded import probe
from django_fairque.embedded.binary import check_executable, find_binary
from django_fairque.embedded.directory import PrivateDirectory, foreign_owner_error
from django_fairque.engine.model.errors import ConfigurationError, short

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    StrPath: TypeAlias = str | os.PathLike[str]

APPENDFSYNC = ("everysec", "always")

# The kernel takes 107 bytes (103 on macOS); the rest is room for the temporary name.
_MAX_SOCKET_PATH_BYTES = 100
# Not tempfile.gettempdir(): TMPDIR differs between the processes that have to agree on this path.
_SHORT_SOCKET_DIRECTORY = Path("/tmp")  # noqa: S108 - the directory made in it is ours alone, and checked


@dataclass(frozen=True)
class ServerSite:
    """One server's place and options.

    ``timeout``: seconds without any answer before giving up; ``answer_timeout``: the same while a server listens and does
    not answer, because it hangs or was suspended.
    """

    directory: Path
    socket: Path
    binary: Path | None
    appendfsync: str
    timeout: float
    answer_timeout: float

    @classmethod
    def at(
        cls,
        directory: StrPath,
        *,
        binary: StrPath | None,
        appendfsync: str,
        timeout: float,
        answer_timeout: float | None = None,
    ) -> ServerSite:
        if sys.platform == "win32":
            raise ConfigurationError(
                'embedded:// needs a POSIX system: set FAIRQUE["REDIS"]["URL"] to a server instead'
            )
        if appendfsync not in APPENDFSYNC:
            raise ConfigurationError(f"appendfsync is {appendfsync!r}, expected one of {', '.join(APPENDFSYNC)}")
        absolute = Path(directory).absolute()
        # One name for one place, whatever links lead to it. Only the last part is kept: that one may not be a link.
        real = absolute.parent.resolve() / absolute.name
        patience = timeout if answer_timeout is None else min(timeout, answer_timeout)
        return cls(real, _socket_path(real), Path(binary) if binary else None, appendfsync, timeout, patience)

    def open(self, *, create: bool) -> PrivateDirectory:
        return PrivateDirectory(self.directory, create=create)

    def find_binary(self) -> Path:
        return check_executable(self.binary, "the embedded server's binary") if self.binary else find_binary()

    def ping(self, timeout: float = 1.0) -> probe.PingResult:
        self.check_socket()
        return probe.ping(self.socket, timeout)

    def check_socket(self) -> None:
        """Refuse to talk to a server that somebody else put where ours belongs."""
        try:
            _check_kind_and_owner(self.socket.parent, stat.S_ISDIR, "directory")
            _check_kind_and_owner(self.socket, stat.S_ISSOCK, "unix socket")
        except FileNotFoundError:
            pass


def _socket_path(directory: Path) -> Path:
    socket = directory / "s.sock"
    if len(os.fsencode(socket)) <= _MAX_SOCKET_PATH_BYTES:
        return socket
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return _SHORT_SOCKET_DIRECTORY / f"fairque-{os.geteuid()}-{digest}" / "s.sock"


def _check_kind_and_owner(path: Path, is_kind: Callable[[int], bool], expected: str) -> None:
    found = path.lstat()
    if not is_kind(found.st_mode):
        raise ConfigurationError(
            f"{path} is a link or a file, expected a {expected}: look at what it is, then remove it"
        )
    if found.st_uid != os.geteuid():
        raise foreign_owner_error(path, found.st_uid)


SCHEME = "embedded"
DEFAULT_NAME = ".fairque"


def is_embedded_url(url: str) -> bool:
    """Return whether a ``url`` is that of an embedded server."""
    return url.startswith(f"{SCHEME}:")


def directory_from_url(url: str, base: Path) -> Path:
    """Return the server's directory that the ``url`` names; without a path in it, ``.fairque`` in ``base``.

    A ``%``, ``?`` or ``#`` in the path is written percent-encoded, as in any URL. Raises `ConfigurationError` if it is
    another URL.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or parts.path == "/" or parts.query or parts.fragment:
        raise ConfigurationError(
            f"expected embedded:// or embedded:///absolute/dir, got {short(url)}: "
            "the path begins with the third slash, and nothing may follow it"
        )
    return Path(unquote(parts.path)) if parts.path else base / DEFAULT_NAME
