"""Database connections of threads that run tasks: checked before and after each task, as Django does per request.

Looking for connections costs more than a small task. So threads that never opened one are recognised by a flag of
their own, which Django's `connection_created` signal sets.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.signals import connection_created

logger = logging.getLogger("django_fairque.worker")


class _Here(threading.local):
    opened = False


_here = _Here()
_open_elsewhere: set[int] = set()
_slots: set[int] = set()


def _opened(**_: Any) -> None:
    _here.opened = True
    ident = threading.get_ident()
    if ident not in _slots:
        _open_elsewhere.add(ident)


connection_created.connect(_opened, dispatch_uid="django_fairque.worker")


def join() -> None:
    """This thread runs tasks and tidies up after itself."""
    _slots.add(threading.get_ident())


def leave() -> None:
    """This thread ends, and its connections with it."""
    _slots.discard(threading.get_ident())
    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.connection is not None:  # Django never closes a SQLite database in memory: tests have those
            connection.connection.close()


def tidy() -> None:
    """Close what this thread should not go on using; 0.1 µs when it has no connection."""
    if _here.opened:
        _tidy()


def _tidy() -> None:
    reset_queries()
    close_old_connections()
    alive = False
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            logger.warning("a task left a transaction of database %r open; it is rolled back", connection.alias)
            connection.close()
            del connections[connection.alias]
        else:
            alive = alive or connection.connection is not None
    _here.opened = alive
    if not alive:
        _open_elsewhere.discard(threading.get_ident())


def is_open_elsewhere() -> bool:
    """Whether a thread that only coroutines use (through `sync_to_async`) has a connection."""
    return bool(_open_elsewhere)
