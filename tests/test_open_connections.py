"""The tests' own check recognizes connections that were left open."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio.connection import ConnectionPool

from tests import open_connections

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from tests.servers import Server


def test_a_connection_whose_transport_has_closed_is_not_left_open(server: Server) -> None:
    async def connect_and_lose() -> AbstractConnection:
        connection: AbstractConnection = ConnectionPool.from_url(server.url).make_connection()
        await connection.connect()
        assert connection._writer is not None
        connection._writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes in the next turn of the loop
        return connection

    connection = asyncio.run(connect_and_lose())
    assert connection in open_connections._opened
    assert open_connections.left_open() == []
    connection._writer = None  # else it warns that nobody has closed it


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_connection_whose_loop_has_ended_is_left_open(has_ended: bool) -> None:
    loop = SimpleNamespace(is_closed=lambda: has_ended)
    connection: Any = SimpleNamespace(_writer=SimpleNamespace(transport=SimpleNamespace(_loop=loop)))
    assert open_connections._is_left_open(connection) is has_ended
