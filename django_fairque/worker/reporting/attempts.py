"""Adds up the figures by task name of a worker's process, and records them on the server from time to time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.statistics.task_names import MAX_NAMES_PER_CALL, AttemptCounts
from django_fairque.worker.common.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.queue.queue import FairQueue

RECORD_SECONDS = 10.0
"""Seconds between two calls of a process for one queue."""
RETRY_SECONDS = 1.0
"""Seconds for which a call is repeated when the server does not answer. The figures are not worth a longer delay."""
ENDED_STATUSES = ("finished", "retried", "dead", "canceled")
"""Statuses of outcomes that end an attempt. Other outcomes were given back, or are not this worker's."""


class TaskNameFigures:
    """The figures of one queue. Thread-safe.

    ``queue`` is the queue's first shard, which keeps them: only the thread that calls this shard records them, so that a server
    that does not respond delays no other shard.
    """

    def __init__(self, queue: FairQueue) -> None:
        self.shard = queue.display_name
        self._queue = queue.with_retry_timeout(RETRY_SECONDS)
        self._lock = threading.Lock()
        self._counts: dict[str, AttemptCounts] = {}
        self._recorded_at = monotonic()

    def add(self, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> None:
        """Count the attempts that these outcomes end."""
        with self._lock:
            for outcome, status in zip(outcomes, statuses, strict=True):
                if status in ENDED_STATUSES:
                    has_failed = status == "dead" or (status == "retried" and not outcome.is_put_off)
                    self._of_name(outcome.lease.name).add(outcome.took, has_failed=has_failed)

    def _of_name(self, name: str) -> AttemptCounts:
        counts = self._counts.get(name)
        if counts is None:
            name = name if len(self._counts) < MAX_NAMES_PER_CALL - 1 else ""
            counts = self._counts.setdefault(name, AttemptCounts())
        return counts

    def record(self, *, at_once: bool = False) -> None:
        """Record the figures if it is time, or ``at_once``. Figures are lost if the server can't be reached."""
        with self._lock:
            now = monotonic()
            if not self._counts or not (at_once or now - self._recorded_at >= RECORD_SECONDS):
                return
            counts, self._counts, self._recorded_at = self._counts, {}, now
        try:
            self._queue.record_task_names(counts)
        except FairQueueError as error:
            logger.debug("queue %s: the figures of task names were not recorded: %s", self._queue.name, error)
