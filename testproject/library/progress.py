"""How far the queue has come, on a terminal or line by line."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque import TaskState

from .errors import StalledError

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.core.management.base import OutputWrapper

    from django_fairque import FairQueue
    from django_fairque.engine.statistics.queue_stats import QueueStats

POLL = 0.2
"""Seconds between two looks; on a terminal each is shown."""
LINE_EVERY = 2.0
"""Seconds between two lines where the output is no terminal."""
STALLED_AFTER = 120.0
"""Seconds without the end of any task after which something must be wrong."""
BAR = 24


@dataclass(frozen=True)
class Look:
    """What was seen ``at`` a moment (monotonic seconds)."""

    at: float
    done: int
    left: int
    users: int


def follow(queue: FairQueue, total: int, out: OutputWrapper, check: Callable[[], None]) -> None:
    """Show how many of ``total`` tasks are done until the queue has nothing left; calls ``check`` at every look."""
    progress = Progress(total, out)
    while progress.see(queue.get_stats(), time.monotonic()):
        check()
        time.sleep(POLL)


class Progress:
    """What was seen and shown so far. Each look says when it is, in monotonic seconds."""

    def __init__(self, total: int, out: OutputWrapper) -> None:
        self._total = total
        self._out = out
        self._live = out.isatty()
        self._first: Look | None = None
        self._shown_at = -math.inf
        self._least: float = math.inf
        self._moved_at = -math.inf

    def see(self, stats: QueueStats, now: float) -> bool:
        """Show what there is to see; false when everything is done.

        Raises
        ------
        StalledError
            It has been the same for too long.
        """
        left = unfinished(stats)
        look = Look(now, max(0, self._total - left), left, stats.users_ready)
        self._first = self._first or look
        if not left or self._live or now - self._shown_at >= LINE_EVERY:
            self._show(look, self._first)
        if left < self._least:
            self._least, self._moved_at = left, now
        elif now - self._moved_at > STALLED_AFTER:
            raise StalledError(f"no task has ended for {STALLED_AFTER:.0f} s, and {left:,} are left")
        return bool(left)

    def _show(self, look: Look, first: Look) -> None:
        self._shown_at = look.at
        rate = (look.done - first.done) / max(look.at - first.at, POLL)
        text = f"{look.done:,} of {self._total:,} tasks done ({rate:,.0f}/s), users waiting: {look.users:,}"
        if not self._live:
            self._out.write(f"  {text}")
            return
        filled = BAR * look.done // max(1, self._total)
        self._out.write(f"\r\x1b[K  [{'#' * filled:.<{BAR}}] {text}", ending="" if look.left else "\n")
        self._out.flush()


def unfinished(stats: QueueStats) -> int:
    return sum(number for state, number in stats.states.items() if not TaskState(state).is_ended)
