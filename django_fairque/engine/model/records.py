"""What the engine answers with: results of a push, attempts, dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import (
    BacklogFullError,
    PushRefusedError,
    TaskIdConflictError,
    TaskValidationError,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class TaskState(str, Enum):
    """Where a task is. It is in exactly one of these states from its push until it is forgotten."""

    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    QUEUED = "queued"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"

    @classmethod
    def named(cls, name: TaskState | str) -> TaskState:
        """The state of that name, however its letters are written; `TaskValidationError` for any other."""
        found = cls.__members__.get(name.upper()) if isinstance(name, str) else None
        if found is None:
            raise TaskValidationError(
                f"state must be one of {', '.join(each.value for each in cls)}, got {short(name)}"
            )
        return found

    @property
    def is_ended(self) -> bool:
        return self in (TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELED)


class FailureType(str, Enum):
    """Why a task became a dead letter."""

    FAILED = "failed"
    EXPIRED = "expired"
    POISONED = "poisoned"


@dataclass(frozen=True)
class PushResult:
    """What became of one pushed task: ``status`` is "accepted", "duplicate", "backlog_full" or "id_conflict".

    ``task_id`` is the id under which the work is known: for a duplicate the existing task's.
    """

    task_id: str
    status: str

    @property
    def accepted(self) -> bool:
        """Whether this push brought the task in."""
        return self.status == "accepted"

    @property
    def duplicate(self) -> bool:
        """Whether the work was known already."""
        return self.status == "duplicate"

    @property
    def is_known(self) -> bool:
        """Whether the queue has the work, by this push or by an earlier one."""
        return self.status not in ("backlog_full", "id_conflict")


def push_refused(queue: str, results: Sequence[PushResult]) -> PushRefusedError:
    """The error for results of which some say that their task was refused."""
    refused = [result.task_id for result in results if not result.is_known]
    conflicts = [result.task_id for result in results if result.status == "id_conflict"]
    if conflicts:
        names = ", ".join(map(repr, conflicts[:3])) + (", …" if len(conflicts) > 3 else "")
        return TaskIdConflictError(
            f"{len(conflicts)} of {len(results)} tasks were refused because of chosen ids that belong to tasks of other "
            f"users (queue {queue!r}): {names}; choose ids that no two users share, for example with the user in them",
            refused=refused,
            results=results,
        )
    return BacklogFullError(
        f"{len(refused)} of {len(results)} tasks were refused because their user's backlog is full "
        f"(queue {queue!r}); try again later, or raise max_backlog or max_backlog_bytes",
        refused=refused,
        results=results,
    )


@dataclass
class EventCount:
    """How often a model event fired, and how often its task was added already.

    ``failed`` is how many tasks could not be sent, ``error`` the last reason; ``last`` seconds since the epoch.
    """

    fired: int = 0
    coalesced: int = 0
    failed: int = 0
    error: str = ""
    last: float | None = None

    def add(self, other: EventCount) -> None:
        self.fired += other.fired
        self.coalesced += other.coalesced
        self.failed += other.failed
        self.error = other.error or self.error


@dataclass(frozen=True)
class Attempt:
    """One line of a task's history: an attempt that did not finish it, or what brought it back.

    ``kind`` is one of failed, released, crashed, lease_ended, expired, poisoned, discarded, canceled, requeued.
    """

    at: float
    kind: str
    worker: str
    error: str = ""
    traceback: str = ""
