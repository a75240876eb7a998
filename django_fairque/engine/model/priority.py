"""Priorities, and the score that a task gets by its priority and waiting time."""

from __future__ import annotations

import re
import time
from enum import IntEnum
from typing import Protocol

from django_fairque.engine.model.errors import TaskValidationError, short


class Priority(IntEnum):
    """The urgency of a task. `CRITICAL` tasks are served first and strictly in order."""

    VERY_LOW = 1
    """Weight 0.2."""
    LOW = 2
    """Weight 0.4."""
    NORMAL = 3
    """Weight 0.6; the default of tasks."""
    HIGH = 4
    """Weight 0.8."""
    VERY_HIGH = 5
    """Weight 1."""
    CRITICAL = 6
    """Critical tasks have no weight: they are served before all others, first in first out."""

    @property
    def is_critical(self) -> bool:
        """Whether this priority is `CRITICAL`."""
        return self is Priority.CRITICAL

    @property
    def weight(self) -> float:
        """The factor by which waiting time makes a task more urgent: 0.2 (`VERY_LOW`) to 1.0 (`VERY_HIGH`).

        Raises `TaskValidationError` for `CRITICAL`, which has no weight, because it is served first.
        """
        if self.is_critical:
            raise TaskValidationError(
                "CRITICAL has no weight: critical tasks are served before all others, first in first out"
            )
        return self.value / 5

    @classmethod
    def from_int(cls, value: int) -> Priority:
        """Return the priority of a number.

        ``value`` is from 1 to 6. Raises `TaskValidationError` for another value.
        """
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 6:
            return _MEMBERS[value - 1]
        found = cls.__members__.get(re.sub("[ -]", "_", value.upper())) if isinstance(value, str) else None
        hint = "" if found is None else f"; write Priority.{found.name}"
        raise TaskValidationError(
            f"priority must be an integer from 1 (VERY_LOW) to 6 (CRITICAL), got {short(value)}{hint}"
        )


SCORE_PER_PRIORITY = 1e15
"""The range of scores of one priority in a user's queue; equal to ``BAND`` in lua/lib/queues.lua."""

_MEMBERS = tuple(Priority)


class ScorableTask(Protocol):
    @property
    def created_at(self) -> float: ...
    @property
    def priority(self) -> Priority: ...


def calculate_score(task: ScorableTask, now: float | None = None) -> float:
    """Return a task's score as Unix time: ``created_at + weight × (now − created_at)``; higher is more urgent.

    ``task`` has a ``priority`` and ``created_at``. The score minus ``created_at`` is the task's credit for waiting; the
    order of service adds a head start to the credit (docs: order inside one user). ``now`` is a Unix time; by default
    that of this machine's clock. Raises `TaskValidationError` for `CRITICAL`, which has no weight.
    """
    moment = time.time() if now is None else now
    return task.created_at + task.priority.weight * (moment - task.created_at)
