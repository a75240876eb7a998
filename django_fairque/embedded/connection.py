"""Connections of redis-py that bring the server up before they connect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.connection import UnixDomainSocketConnection

from django_fairque.embedded.server import EmbeddedServer

if TYPE_CHECKING:
    import os
    import socket


class _Embedded:
    def __init__(
        self, *, embedded_directory: str, embedded_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._embedded = EmbeddedServer(embedded_directory, **embedded_options or {})
        super().__init__(**{**kwargs, "path": self._embedded.socket})


class EmbeddedConnection(_Embedded, UnixDomainSocketConnection):
    """A connection to the server in ``embedded_directory``, which is started if it does not run.

    Only connecting starts it: a command that was under way when the server died raises as ever, because only its sender
    knows whether it may be sent again.
    """

    def connect(self) -> None:
        if self._sock is None:
            # Before the first try and not after its failure: this also waits for a server that is loading, and refuses
            # the socket of a stranger.
            self._embedded.ensure()
        super().connect()  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        # redis-py 8 comes here directly to reconnect for a command.
        try:
            return super()._connect()  # type: ignore[no-any-return, no-untyped-call]
        except (FileNotFoundError, ConnectionRefusedError):
            self._embedded.ensure()
            return super()._connect()  # type: ignore[no-any-return, no-untyped-call]


class AsyncEmbeddedConnection(_Embedded, AsyncUnixDomainSocketConnection):
    """As `EmbeddedConnection`, for coroutines: the server is looked after in a thread."""

    async def connect(self) -> None:
        if not self.is_connected:
            # Not in _connect, whose every error redis-py turns into its own and retries.
            await asyncio.to_thread(self._embedded.ensure)
        await super().connect()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.to_thread(self._embedded.ensure)
            await super()._connect()  # type: ignore[no-untyped-call]


def connection_pool_kwargs(
    directory: str | os.PathLike[str], *, asynchronous: bool = False, **options: Any
) -> dict[str, Any]:
    """What a ``ConnectionPool`` of redis-py (of ``redis.asyncio`` if ``asynchronous``) needs to reach the server.

    ``options`` are those of `EmbeddedServer`. Nothing is started before the first connection is made.
    """
    server = EmbeddedServer(directory, **options)
    return {
        "connection_class": AsyncEmbeddedConnection if asynchronous else EmbeddedConnection,
        "path": server.socket,
        "embedded_directory": str(server.directory),
        "embedded_options": options,
    }
