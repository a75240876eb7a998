"""Servers behind encryption: certificates of an authority of the tests' own, and a front that speaks TLS before any server.

Only some of the servers to test on can speak TLS themselves; a front is also how many are run.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from tests.servers import Server

NOT_AFTER = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)


class Authority:
    """Issues certificates; `file` is what clients trust."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, host: str = "localhost", *, expired: bool = False) -> ssl.SSLContext:
        """Return the TLS context of a server that pretends to be ``host``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._issue(host, expired=expired).configure_cert(context)
        return context

    def files(self, host: str = "localhost") -> tuple[Path, Path]:
        """A certificate and its key, for a server that speaks TLS itself."""
        made = self._issue(host)
        certificate, key = self._directory / "server.pem", self._directory / "server.key"
        made.cert_chain_pems[0].write_to_path(certificate)
        made.private_key_pem.write_to_path(key)
        return certificate, key

    def _issue(self, host: str, *, expired: bool = False) -> trustme.LeafCert:
        return self._ca.issue_cert(host, not_after=NOT_AFTER if expired else None)


class Front:
    """Listens at `port` with ``context`` (which may be replaced), and passes on to a server's socket."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        self._server = server
        self.context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ended = False

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """End all connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _start(self, what: object, *args: object) -> None:
        thread = threading.Thread(target=what, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ended:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, plain)

    def _serve(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):  # a client that does not trust us hangs up
            plain.settimeout(10)
            context = self.context
            with context.wrap_socket(plain, server_side=True) as near, socket.socket(socket.AF_UNIX) as far:
                far.connect(self._server.socket)
                near.settimeout(None)
                self._open.append(near)
                if context is self.context:  # another one is followed by a `cut`, which may have missed this connection
                    _pass_on(near, far)


def _pass_on(near: ssl.SSLSocket, far: socket.socket) -> None:
    while True:
        ready = [near] if near.pending() else select.select([near, far], [], [])[0]
        for end in ready:
            data = end.recv(65536)
            if not data:
                return
            (far if end is near else near).sendall(data)
