"""Connections for coroutines that a test leaves open are its own failure.

Nobody can close them once their event loop is: some later garbage collection warns of them, in whichever test is running
then. And where that collection falls into ``ast.parse``, Python 3.11 fails there besides: telling of the warning parses too.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from redis.asyncio.connection import AbstractConnection

_opened: WeakSet[AbstractConnection] = WeakSet()
_databases: dict[BaseDatabaseWrapper, threading.Thread] = {}
"""Connections to databases in memory, with the thread that opened each."""


def watch() -> None:
    """Remember every connection that is opened, and by which test."""
    connection_created.connect(_remember_database)
    name = "connect_check_health"  # a cluster's nodes call it without `connect`, the only one that older redis-py has
    name = name if hasattr(AbstractConnection, name) else "connect"
    connect = getattr(AbstractConnection, name)

    async def remembered(self: AbstractConnection, *args: Any, **options: Any) -> None:
        self.opened_by = os.environ.get("PYTEST_CURRENT_TEST", "nobody").partition(" ")[0]  # type: ignore[attr-defined]
        _opened.add(self)
        await connect(self, *args, **options)

    setattr(AbstractConnection, name, remembered)


def left_open() -> list[str]:
    """Return the connections whose event loop has ended, each with the test that opened it, and each only once."""
    found = [connection for connection in list(_opened) if _is_left_open(connection)]
    for connection in found:
        _opened.discard(connection)
    return [f"{connection!r}, opened in {connection.opened_by}" for connection in found]  # type: ignore[attr-defined]


def _is_left_open(connection: AbstractConnection) -> bool:
    if not (writer := connection._writer):
        return False
    loop = writer.transport._loop  # type: ignore[attr-defined] # None once the transport has closed
    return loop is not None and loop.is_closed()


def close_databases() -> None:
    """Close the connections to databases in memory whose thread has ended: Django does not, and Python 3.13 warns of it."""
    for connection, thread in list(_databases.items()):
        if not thread.is_alive():
            del _databases[connection]
            connection.inc_thread_sharing()
            BaseDatabaseWrapper.close(connection)


def _remember_database(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor == "sqlite" and connection.is_in_memory_db():  # type: ignore[attr-defined]
        _databases[connection] = threading.current_thread()
