"""Finds out whether a transaction may be open in any thread of this process, without calling into that thread.

The transaction of a coroutine is open in the thread that runs its synchronous code. A call into that thread takes
longer than sending a task, and is only necessary if some transaction is open.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

from django.db.backends.signals import connection_created

from django_fairque.engine.model.ids import PerProcess

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class _Connections:
    """The database connections of all threads that were opened since `watch_connections` was called."""

    def __init__(self) -> None:
        self.is_complete = False
        self.locks = PerProcess(threading.Lock)
        self.known: tuple[ref[BaseDatabaseWrapper], ...] = ()


_connections = _Connections()


def watch_connections() -> None:
    """Record each database connection that is opened from now on. The Django app calls this before any other app can
    open a connection.
    """
    connection_created.connect(_add, dispatch_uid="django_fairque.tasks")
    _connections.is_complete = True


def _add(connection: BaseDatabaseWrapper, **_: Any) -> None:
    with _connections.locks.get():
        if all(reference() is not connection for reference in _connections.known):
            living = (reference for reference in _connections.known if reference() is not None)
            _connections.known = (*living, ref(connection))


def may_be_open() -> bool:
    """Return False if certainly no connection of this process is in a transaction, and all connections run commit
    hooks.
    """
    for reference in _connections.known:
        found = reference()
        if found is not None and (found.in_atomic_block or (found.connection is not None and not found.autocommit)):
            return True
    return not _connections.is_complete
