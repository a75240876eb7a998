"""The clock of a database, which counts the time that tasks spend in its outbox."""

from __future__ import annotations

import time
from functools import cached_property

from django.db import connections

NOW_SQL = {
    "postgresql": "SELECT EXTRACT(EPOCH FROM CLOCK_TIMESTAMP())",
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000",
    "sqlite": "SELECT (JULIANDAY('now') - 2440587.5) * 86400.0",
    "oracle": "SELECT (CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - DATE '1970-01-01') * 86400 FROM DUAL",
}
"""Statements for the time of a database as Unix time, by Django's name of the kind of database."""


class DatabaseClock:
    """The time of the database ``alias``: read once, when it is needed first, and counted on from there.

    A database of an unknown kind has the time of this process.
    """

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @cached_property
    def _start(self) -> tuple[float, float]:
        connection = connections[self._alias]
        statement = NOW_SQL.get(connection.vendor)
        if statement is None:
            return time.time(), time.monotonic()
        with connection.cursor() as cursor:
            cursor.execute(statement)
            (found,) = cursor.fetchone()
        return float(found), time.monotonic()

    def now(self) -> float:
        """Return the time as Unix time. Raises the errors of the database."""
        at, counted_from = self._start
        return at + time.monotonic() - counted_from
