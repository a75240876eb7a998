"""Values that the engine returns: states, results of a push, attempts, counts of model events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from django_fairque.engine.model import errors


class TaskState(str, Enum):
    """The state of a task. From its push until it is forgotten, a task has exactly one of these states."""

    SCHEDULED = "scheduled"
    """The task waits for its start time, or for the next attempt after a failure."""
    DEFERRED = "deferred"
    """The task waits for tasks that it depends on."""
    QUEUED = "queued"
    """The task can start as soon as it is its turn."""
    STARTED = "started"
    """A worker has a lease on the task."""
    FINISHED = "finished"
    """The task is done; its result is kept for ``result_ttl`` seconds."""
    FAILED = "failed"
    """The task is a dead letter, kept for ``failed_ttl`` seconds."""
    CANCELED = "canceled"
    """The task was canceled or discarded; it is kept for ``result_ttl`` seconds."""

    @classmethod
    def from_name(cls, name: TaskState | str) -> TaskState:
        """Return the state of a ``name``, in letters of any case. Raises `TaskValidationError` for another name."""
        found = cls.__members__.get(name.upper()) if isinstance(name, str) else None
        if found is None:
            raise errors.TaskValidationError(
                f"state must be one of {', '.join(state.value for state in cls)}, got {errors.short(name)}"
            )
        return found

    @property
    def is_ended(self) -> bool:
        """Whether a task in this state has ended: FINISHED, FAILED or CANCELED."""
        return self in (TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELED)


class FailureType(str, Enum):
    """The reason why a task became a dead letter."""

    FAILED = "failed"
    """The last attempt failed, and no retry was left or wanted."""
    EXPIRED = "expired"
    """The task had not started when it expired."""
    POISONED = "poisoned"
    """The task can't run, or its worker processes died too often while they ran it."""


REFUSED_STATUSES = ("backlog_full", "id_conflict", "at_limit")


class PushResult(NamedTuple):
    """The result of pushing one task: ``status`` is "accepted", "duplicate", "backlog_full", "id_conflict" or "at_limit".

    ``task_id`` is the id under which the queue has the work: for a duplicate, the id of the existing task.
    """

    task_id: str
    status: str

    @property
    def accepted(self) -> bool:
        """Whether this push added the task."""
        return self.status == "accepted"

    @property
    def duplicate(self) -> bool:
        """Whether the queue had the work already."""
        return self.status == "duplicate"

    @property
    def is_known(self) -> bool:
        """Whether the queue has the work, by this push or by an earlier push."""
        return self.status not in REFUSED_STATUSES


def push_refused(queue: str, results: Sequence[PushResult], limits: str = "a limit") -> errors.PushRefusedError:
    """Return the error for the results of a push that refused some tasks. ``limits`` describes the limits that were
    full.
    """
    refused = [result.task_id for result in results if not result.is_known]
    conflicts = [result.task_id for result in results if result.status == "id_conflict"]
    if conflicts:
        names = ", ".join(map(repr, conflicts[:3])) + (", …" if len(conflicts) > 3 else "")
        return errors.TaskIdConflictError(
            f"{len(conflicts)} of {len(results)} tasks were refused because of chosen ids that belong to tasks of other "
            f"users (queue {queue!r}): {names}; choose ids that no two users share, for example with the user in them",
            refused=refused,
            results=results,
        )
    if any(result.status == "at_limit" for result in results):
        return errors.AtLimitError(
            f"{len(refused)} of {len(results)} tasks were refused, because {limits} with at_limit='skip' has no place for them "
            f"(queue {queue!r}): an earlier task of the key has not ended",
            refused=refused,
            results=results,
        )
    return errors.BacklogFullError(
        f"{len(refused)} of {len(results)} tasks were refused because their user's backlog is full "
        f"(queue {queue!r}); try again later, or raise max_backlog or max_backlog_bytes",
        refused=refused,
        results=results,
    )


ActKind = Literal["retry", "discard", "move", "cancel"]
"""The kinds of acts on many tasks."""


@dataclass
class EventCount:
    """Counts of a model event: how often it fired (``fired``), and how often its task was already there (``coalesced``).

    ``failed`` is the number of tasks that could not be sent, ``error`` the last reason. ``last`` is the Unix time at which
    the event fired last.
    """

    fired: int = 0
    coalesced: int = 0
    failed: int = 0
    error: str = ""
    last: float | None = None

    def add(self, other: EventCount) -> None:
        """Add the counts of ``other`` to these."""
        self.fired += other.fired
        self.coalesced += other.coalesced
        self.failed += other.failed
        self.error = other.error or self.error


@dataclass(frozen=True)
class Attempt:
    """One line of a task's history: an attempt that did not finish the task, or an event that brought the task back.

    ``at`` is its Unix time. ``kind`` is one of failed, released, crashed, lease_ended, expired, poisoned, discarded,
    canceled, moved, requeued, restored. ``worker`` had the task; ``error`` and ``traceback`` are texts, empty if there is none.
    ``ready_at`` is the Unix time since which the attempt could start, and ``started_at`` the time at which it started;
    None if this line is not about an attempt that ran, or an earlier version wrote it.
    """

    at: float
    kind: str
    worker: str
    error: str = ""
    traceback: str = ""
    ready_at: float | None = None
    started_at: float | None = None
