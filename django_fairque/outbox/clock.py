"""The clock of a database. With this clock the time is measured that tasks spend in the outbox."""

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
"""SQL statements that return the current time as Unix time, by Django's vendor name of the database."""


class DatabaseClock:
    """The time of the database ``alias``. The time is read once, when it is first needed, and then counted on with the
    clock of this process.

    For a database of another vendor, the time of this process is used.
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
        """Return the current time as Unix time. Raises the errors of the database."""
        at, counted_from = self._start
        return at + time.monotonic() - counted_from
