"""Relays tasks that remained in the outbox tables of the project's databases, because the process that enqueued them
died or could not reach the server.
"""

from __future__ import annotations

import threading
from time import monotonic

from django.db import DatabaseError

from django_fairque.conf import get_config
from django_fairque.engine.model.durations import JITTER
from django_fairque.outbox.relay import outboxes, relay
from django_fairque.worker.common import isolation
from django_fairque.worker.common.log import logger

OUTBOX_POLL_SECONDS = 1.0
"""Minimum seconds between two rounds when there were no rows to relay. The pause is random, up to twice as long, so
that workers do not relay at the same time."""
MAX_OUTBOX_PAUSE_SECONDS = 15.0
"""Maximum seconds between two rounds while the server or a database can't be reached."""
MIN_ROW_AGE_SECONDS = 1.0
"""Minimum age of a row in seconds before this thread relays it. Normally, the process that wrote the row relays it
right after its commit."""
OUTBOX_WARNING_SECONDS = 60.0


class OutboxThread:
    """Relays outboxes in a separate thread. The thread exists only if the outbox is switched on."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause = OUTBOX_POLL_SECONDS
        self._next_warning_at = 0.0

    def start(self, *, at_once: bool = False) -> None:
        """Start the thread. ``at_once``: relay only the rows that are in the outbox now, and wait for this, so that a
        burst finds their tasks.
        """
        if not get_config().outbox:
            return
        if at_once:
            self._relay_all(minimum_age=0.0)
        else:
            self._thread = threading.Thread(target=self._run, name="fairque-outbox", daemon=True)
            self._thread.start()

    def end(self, seconds: float) -> None:
        """Finish the current round within ``seconds``. Another worker relays the rows that are left."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _relay_all(self, minimum_age: float = MIN_ROW_AGE_SECONDS) -> None:
        """Relay the rows of all databases that have an outbox. An outbox that can't be relayed does not prevent the
        worker from running tasks.
        """
        before, self._pause = self._pause, OUTBOX_POLL_SECONDS
        try:
            for alias in outboxes():
                more = True
                while more and not self._ended.is_set():
                    more = self._relay(alias, minimum_age, before)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged and tried again
            logger.exception("relaying the outbox failed; it is tried again")
            self._pause = MAX_OUTBOX_PAUSE_SECONDS

    def _relay(self, alias: str, minimum_age: float, before: float) -> bool:
        """Relay some rows of a database. Return whether more rows are left."""
        try:
            relayed = relay(alias, minimum_age=minimum_age)
        except DatabaseError as error:
            self._log_failure(alias, f"{error} (if its table is missing: has `migrate` run?)", before)
            return False
        if relayed.error is not None:
            self._log_failure(alias, relayed.error, before)
        return relayed.more and relayed.error is None

    def _log_failure(self, alias: str, error: Exception | str, before: float) -> None:
        self._pause = min(MAX_OUTBOX_PAUSE_SECONDS, 2 * before)
        if monotonic() >= self._next_warning_at:
            self._next_warning_at = monotonic() + OUTBOX_WARNING_SECONDS
            logger.warning("the outbox of database %r can't be relayed for now: %s", alias, error)

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._ended.wait(pause * JITTER.uniform(1.0, 2.0)):
                self._relay_all()
                isolation.clean_up_connections()
                pause = self._pause
        finally:
            isolation.close_connections()
