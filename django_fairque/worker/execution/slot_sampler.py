"""Samples the slots of a process once a second: which task runs in each slot, and for which user."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.worker_activity import (
    ACTIVITY_SECONDS,
    MAX_REPORTED_SLOTS,
    ReportedTask,
    encode_activity,
)

if TYPE_CHECKING:
    from django_fairque.worker.execution.slots import Slot

LATEST_OFFSET_SECONDS = 0.9
"""The sample of a second is taken at a random moment of it, so that work that comes each second is seen as often as it runs. The
rest is for the thread to be late."""


class SlotSampler:
    """Samples the slots from the thread that enforces time limits. Single tasks have no extra cost.

    ``on_report`` is called with each report (`encode_activity`).
    """

    def __init__(self, slots: Sequence[Slot], on_report: Callable[[bytes], object]) -> None:
        self._slots = slots[:MAX_REPORTED_SLOTS]
        self._samples: list[deque[str]] = [deque(maxlen=ACTIVITY_SECONDS) for _ in self._slots]
        self._on_report = on_report
        self._second = self._due = 0.0
        """Start of the second that the next sample is for, and the time when it is due."""

    def update(self) -> None:
        """Take a sample if one is due. Seconds that were missed, because the process did not respond, count as this one."""
        now = monotonic()
        if now < self._due:
            return
        self._second = self._second or now
        missed = int(now - self._second)
        self._second += missed + 1
        self._due = self._second + random.uniform(0.0, LATEST_OFFSET_SECONDS)  # noqa: S311
        running = [self._describe_running_task(slot, now) for slot in self._slots]
        for samples, task in zip(self._samples, running, strict=True):
            samples.extend(["" if task is None else task.user_id] * (1 + min(missed, ACTIVITY_SECONDS)))
        self._on_report(encode_activity(time.time(), list(zip(map(tuple, self._samples), running, strict=True))))

    @staticmethod
    def _describe_running_task(slot: Slot, now: float) -> ReportedTask | None:
        work = slot.work
        if work is None:
            return None
        lease, count = (work[0], len(work)) if isinstance(work, list) else (work, 1)
        started = slot.started
        since = 0.0 if started is None or slot.work is not work else max(0.0, now - started)
        return ReportedTask(lease.task_id, lease.name, lease.user_id, time.time() - since, count)
