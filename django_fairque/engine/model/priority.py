"""Priorities, and what waiting earns."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import Protocol

from django_fairque.engine.model.errors import TaskValidationError, short


class Priority(IntEnum):
    """How urgent a task is, from `VERY_LOW` (1) to `CRITICAL` (6, served first and strictly in order)."""

    VERY_LOW = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    VERY_HIGH = 5
    CRITICAL = 6

    @property
    def is_critical(self) -> bool:
        return self is Priority.CRITICAL

    @property
    def weight(self) -> float:
        """How fast waiting makes a task more urgent: 0.2 (`VERY_LOW`) to 1.0 (`VERY_HIGH`).

        Raises `TaskValidationError` for `CRITICAL`, which is not weighed but served first.
        """
        if self.is_critical:
            raise TaskValidationError(
                "CRITICAL has no weight: critical tasks are served before all others, first in first out"
            )
        return self.value / 5

    @classmethod
    def from_int(cls, value: int) -> Priority:
        """The priority of that number; `TaskValidationError` with the allowed range for any other value."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 6:
            return _MEMBERS[value - 1]
        raise TaskValidationError(f"priority must be an integer from 1 (VERY_LOW) to 6 (CRITICAL), got {short(value)}")


SCORE_PER_PRIORITY = 1e15
"""The range of scores of one priority in a user's queue, as ``BAND`` in lua/lib/base.lua."""

_MEMBERS = tuple(Priority)


class ScorableTask(Protocol):
    @property
    def created_at(self) -> float: ...
    @property
    def priority(self) -> Priority: ...


def calculate_score(task: ScorableTask, now: float | None = None) -> float:
    """``created_at + weight × (now − created_at)``, in seconds since the epoch; higher is more urgent.

    Minus ``created_at`` it is what the task has earned by waiting; the order of service adds a head start to
    that (docs: order inside one user). ``now`` defaults to this machine's clock.
    """
    moment = time.time() if now is None else now
    return task.created_at + task.priority.weight * (moment - task.created_at)
