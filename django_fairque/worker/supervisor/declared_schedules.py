"""Brings the schedules of the configuration to the queues when a worker starts, or as soon as there is a server."""

from __future__ import annotations

import threading

from django_fairque.tasks.schedules import sync_or_log

STARTUP_RETRY_SECONDS = 0.5
"""Seconds for which a call is repeated that all else waits for."""
SCHEDULE_SYNC_PAUSE_SECONDS = 1.0
MAX_SCHEDULE_SYNC_PAUSE_SECONDS = 15.0
"""Seconds between two attempts while the server is away: each asks the user functions of tasks."""


class DeclaredSchedules(threading.Thread):
    """Makes the first attempt where it is begun, so that a burst finds the schedules; more in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(name="fairque-schedules", daemon=True)
        self._ended = threading.Event()

    def begin(self, *, is_unreachable: bool) -> None:
        """``is_away``: the server did not answer just now."""
        if is_unreachable or not sync_or_log(STARTUP_RETRY_SECONDS):
            self.start()

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        pause = SCHEDULE_SYNC_PAUSE_SECONDS
        while not self._ended.wait(pause) and not sync_or_log(STARTUP_RETRY_SECONDS):
            pause = min(MAX_SCHEDULE_SYNC_PAUSE_SECONDS, 2 * pause)
