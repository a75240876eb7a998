"""A proxy between some processes and the server, on a separate socket, that causes faults of a network."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PASS, DROP, CUT, HOLE, SLOW = "pass", "drop", "cut", "hole", "slow"
"""The faults of a connection: none; the reply is lost and the connection closed; half of the request arrives and the
connection is closed; nothing arrives any more, and the connection stays open; everything arrives late."""

CHUNK = 65536


class Proxy:
    """Listens on ``path`` and connects to ``target``, both unix sockets, until it is closed.

    ``mode`` is the fault of data that is sent from now on. One piece in ``one_in``, drawn at random, has the fault.
    """

    def __init__(self, path: str, target: str, *, latency: float = 0.1) -> None:
        self.path, self._target, self._latency = path, target, latency
        self.mode = PASS
        self.one_in = 1
        self.hits = 0
        """The number of requests and replies that had a fault."""
        self._chance = random.Random(0)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(512)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @contextlib.contextmanager
    def doing(self, mode: str, one_in: int = 1) -> Iterator[None]:
        self.one_in, self.mode = one_in, mode
        try:
            yield
        finally:
            self.mode = PASS

    def close(self) -> None:
        self._listener.close()
        Path(self.path).unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the connection is closed
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            pair = _Pair(self, client, server)
            threading.Thread(target=pair.requests, name="proxy-requests", daemon=True).start()
            threading.Thread(target=pair.replies, name="proxy-replies", daemon=True).start()

    def fate(self, mine: str, data: bytes) -> str:
        """Return the fault of the next piece, ``data``, of a request (``mine`` is CUT) or of a reply (it is DROP)."""
        mode = self.mode
        if mode == PASS or self._chance.randrange(self.one_in):
            return PASS
        self.hits += 1
        if mode == SLOW:
            time.sleep(self._latency)
            return PASS
        return mode


class _Pair:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._is_hole = False

    def requests(self) -> None:
        self._pump(self._client, self._server, CUT)

    def replies(self) -> None:
        self._pump(self._server, self._client, DROP)

    def _pump(self, source: socket.socket, sink: socket.socket, mine: str) -> None:
        with contextlib.suppress(OSError):  # an end is gone: so is the other, below
            while data := source.recv(CHUNK):
                fate = self._proxy.fate(mine, data)
                self._is_hole = self._is_hole or fate == HOLE
                if self._is_hole:
                    continue
                if fate == CUT == mine:
                    sink.sendall(data[: len(data) // 2])
                    break
                if fate == DROP == mine:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
