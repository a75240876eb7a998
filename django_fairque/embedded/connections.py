"""Connections that start the server when they connect."""

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
    """A connection to the server in ``embedded_directory``, which is started if it does not run. A client's pool makes the
    connection.

    Only connecting starts the server: a command that was in progress when the server died raises an error as usual, because only
    its sender knows whether it may be sent again.
    """

    def connect(self) -> None:
        """Start the server if it does not run, and connect."""
        self._ensure()
        super().connect()  # type: ignore[no-untyped-call]

    def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it does not run, and connect; ``args`` and ``kwargs`` are those of redis-py."""
        # redis-py 8 comes here directly to reconnect for a command.
        self._ensure()
        super().connect_check_health(*args, **kwargs)

    def _ensure(self) -> None:
        """Before a connection is tried and not after its failure: this also waits for a server that is loading, refuses
        the socket of a stranger, and is not taken in by one that has been killed and whose socket still takes connections.
        """
        if self._sock is None:
            self._embedded.ensure()


class AsyncEmbeddedConnection(_EmbeddedConnectionBase, AsyncUnixDomainSocketConnection):
    """Works like `EmbeddedConnection`, for coroutines: a thread starts the server."""

    async def connect(self) -> None:
        """Start the server if it does not run, and connect."""
        await self._ensure()
        await super().connect()  # type: ignore[no-untyped-call]

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Start the server if it does not run, and connect; ``args`` and ``kwargs`` are those of redis-py."""
        await self._ensure()
        await super().connect_check_health(*args, **kwargs)

    async def _ensure(self) -> None:
        # Start the server here, because redis-py converts and retries every error in `_connect`.
        if not self.is_connected:
            await asyncio.to_thread(self._embedded.ensure)


def connection_pool_kwargs(
    directory: str | os.PathLike[str], *, asynchronous: bool = False, **options: Any
) -> dict[str, Any]:
    """Return the arguments that a ``ConnectionPool`` of redis-py needs to reach the server. Nothing is started before
    the first connection is made.

    ``directory`` and ``options`` are those of `EmbeddedServer`. ``asynchronous`` is whether the pool is one of
    ``redis.asyncio``; False by default.
    """
    server = EmbeddedServer(directory, **options)
    return {
        "connection_class": AsyncEmbeddedConnection if asynchronous else EmbeddedConnection,
        "path": server.socket,
        "embedded_directory": str(server.directory),
        "embedded_options": options,
    }
