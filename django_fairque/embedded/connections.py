"""Connections of redis-py that start the embedded server when they connect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio.connection import UnixDomainSocketConnection as AsyncUnixDomainSocketConnection
from redis.connection import UnixDomainSocketConnection

from django_fairque.embedded.server import EmbeddedServer

if TYPE_CHECKING:
    import os


class _EmbeddedConnectionBase:
    def __init__(
        self, *, embedded_directory: str, embedded_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self._embedded = EmbeddedServer(embedded_directory, **embedded_options or {})
        super().__init__(**{**kwargs, "path": self._embedded.socket})


class EmbeddedConnection(_EmbeddedConnectionBase, UnixDomainSocketConnection):
    """A connection to the embedded server in ``embedded_directory``. If the server is not running, connecting starts
    it. The pool of a client makes the connection.

    Only connecting starts the server. A command that was in progress when the server died raises an error as usual,
    because only the caller knows whether the command may be sent again.
    """

    def connect(self) -> None:
        """Start the server if it is not running, and connect."""
        self._ensure()
        super().connect()  # type: ignore[no-untyped-call]

    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it is not running, and connect; ``args`` and ``kwargs`` are the arguments of redis-py."""
        # When redis-py 8 reconnects for a command, it calls this method and not `connect`.
        self._ensure()
        super().connect_check_health(*args, **kwargs)

    def _ensure(self) -> None:
        """Start the server before each attempt to connect, and not only after an attempt has failed. This call also
        waits for a server that is loading, and refuses the socket of another user's process. A server that was killed
        while its socket still accepts connections is not mistaken for a running one.
        """
        if self._sock is None:
            self._embedded.ensure()


class AsyncEmbeddedConnection(_EmbeddedConnectionBase, AsyncUnixDomainSocketConnection):
    """The same as `EmbeddedConnection` for coroutines. A thread starts the server."""

    async def connect(self) -> None:
        """Start the server if it is not running, and connect."""
        await self._ensure()
        await super().connect()  # type: ignore[no-untyped-call]

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it is not running, and connect; ``args`` and ``kwargs`` are the arguments of redis-py."""
        await self._ensure()
        await super().connect_check_health(*args, **kwargs)

    async def _ensure(self) -> None:
        # The server is started here, because redis-py converts and retries every error in `_connect`.
        if not self.is_connected:
            await asyncio.to_thread(self._embedded.ensure)


def connection_pool_kwargs(
    directory: str | os.PathLike[str], *, asynchronous: bool = False, **options: Any
) -> dict[str, Any]:
    """Return the arguments with which a ``ConnectionPool`` of redis-py reaches the embedded server. The server is not
    started before the first connection is made.

    ``directory`` and ``options`` are the arguments of `EmbeddedServer`. ``asynchronous`` shows whether the pool belongs
    to ``redis.asyncio``; False by default.
    """
    server = EmbeddedServer(directory, **options)
    return {
        "connection_class": AsyncEmbeddedConnection if asynchronous else EmbeddedConnection,
        "path": server.socket,
        "embedded_directory": str(server.directory),
        "embedded_options": options,
    }
