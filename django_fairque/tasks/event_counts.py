"""Counts of model events that this process has not told a server yet.

They travel with the next tasks that events ask for, so counting costs no call. What is here when the process ends is lost;
what went wrong is in the log too.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import EventCount

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Untold:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew; in a forked child the counts are its parent's to tell."""
        self.lock = threading.Lock()
        self.counts: dict[str, dict[str, EventCount]] = {}


_untold = _Untold()
os.register_at_fork(after_in_child=_untold.forget)


def keep_event_counts(queue: str, counts: Mapping[str, EventCount]) -> None:
    """Add to what is to be told."""
    if not counts:
        return
    with _untold.lock:
        known = _untold.counts.setdefault(queue, {})
        for event, count in counts.items():
            known.setdefault(event, EventCount()).add(count)


def take_event_counts(queue: str) -> dict[str, EventCount]:
    """All that is to be told to a queue; the caller tells it, or keeps it again."""
    with _untold.lock:
        return _untold.counts.pop(queue, {})
