"""Samples the slots of a process once a second: which task runs in each slot, for which user, and at which line."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from sys import _current_frames as current_stacks
from time import monotonic, sleep
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.worker_activity import (
    ACTIVITY_SECONDS,
    MAX_REPORTED_SLOTS,
    ReportedTask,
    encode_activity,
)
from django_fairque.engine.model.durations import JITTER

if TYPE_CHECKING:
    from types import FrameType

    from django_fairque.worker.common.buffer import Work
    from django_fairque.worker.execution.slots import Slot

HAS_INTERPRETER_LOCK = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether this Python has a global interpreter lock. Without the lock, the stacks of other threads can't be read
safely, so no code lines are reported."""
LATEST_OFFSET_SECONDS = 0.9
"""Latest moment of a sample within its second. Samples are taken at random moments, so that tasks that start once a
second are sampled as often as other tasks. The rest of the second remains in case the thread is late."""


class SlotSampler:
    """Samples the slots in the thread that enforces time limits, so no task takes longer because of it.

    ``on_report`` is called with the encoded report after each sample (`encode_activity`).
    """

    def __init__(self, slots: Sequence[Slot], on_report: Callable[[bytes], object]) -> None:
        self._slots = slots
        self._samples: list[deque[str]] = [
            deque(maxlen=ACTIVITY_SECONDS if index < MAX_REPORTED_SLOTS else 0) for index in range(len(slots))
        ]
        self._on_report = on_report
        self._second = self._due = 0.0
        """Two times: the start of the second to which the next sample belongs, and the moment at which the sample is
        due."""

    def update(self) -> None:
        """Take a sample if one is due. If the process did not respond for some seconds, the sample counts for these
        seconds as well.
        """
        now = monotonic()
        if now < self._due:
            return
        self._second = self._second or now
        missed = int(now - self._second)
        self._second += missed + 1
        self._due = self._second + JITTER.uniform(0.0, LATEST_OFFSET_SECONDS)
        running = self._describe_running_tasks(now)
        for samples, task in zip(self._samples, running, strict=True):
            samples.extend(["" if task is None else task.user_id] * (1 + min(missed, ACTIVITY_SECONDS)))
        self._on_report(encode_activity(time.time(), list(zip(map(tuple, self._samples), running, strict=True))))

    def _describe_running_tasks(self, now: float) -> list[ReportedTask | None]:
        # Release the interpreter lock and take it again. Then no other thread runs for the next 5 ms
        # (`sys.getswitchinterval`), in which the stacks are read. If a function returned while its frame is read here,
        # its local values would be freed in this thread.
        sleep(0.0)
        works = [slot.work for slot in self._slots]
        stacks = current_stacks() if HAS_INTERPRETER_LOCK and any(works) else {}
        return [
            None if work is None else self._describe_running_task(slot, work, stacks, now)
            for slot, work in zip(self._slots, works, strict=True)
        ]

    @staticmethod
    def _describe_running_task(slot: Slot, work: Work, stacks: Mapping[int, FrameType], now: float) -> ReportedTask:
        lease, count = (work[0], len(work)) if isinstance(work, list) else (work, 1)
        started, line = slot.started, slot.find_line(stacks)
        if started is None or slot.work is not work:  # the task has not begun yet, or has ended in the meantime
            started, line = now, ""
        began_at = time.time() - max(0.0, now - started)
        return ReportedTask(lease.task_id, lease.name, lease.user_id, began_at, count, line)
