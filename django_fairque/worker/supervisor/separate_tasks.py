"""Tasks that run in a process for one task: suspects, tasks in quarantine, and tasks that are declared as isolated.

A suspect was running when its process died, and may have been the cause. Each suspect runs in a separate process, so another
death has one cause. A worker runs as many such tasks as it has slots, and each takes a slot of the process that has fetched it. A
worker runs at most one task in quarantine of each user.

The process that fetched such a task passes it on to the supervisor, which starts a process for it. That process takes the lease
over, runs the task, reports its outcome, and ends.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.tasks import registry
from django_fairque.worker.common.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

SUSPECT_RETURN_SECONDS = 1.0
"""Minimum seconds until a suspect is ready again after a worker had no room for it."""
MIN_SUSPECT_RETURN_SPACING_SECONDS = 0.05
MAX_SUSPECT_RETURN_SPACING_SECONDS = 1.0
"""Limits for the seconds after which another suspect of the same user is ready again, if a worker gave back several. Between them
it is half the time for which the last suspects ran, so one worker gives back about one suspect for each one that runs."""
MAX_SUSPECT_RETURN_SECONDS = 600.0
"""Maximum seconds until a task that was given back is ready again. Ten minutes after a task exceeded its hard time limit, other
tasks of its name and user are no longer suspects."""
ONE_AT_A_TIME_SECONDS = 600.0
"""Seconds for which suspects run one after the other when several died at once, with the fork server."""


class AloneReason(Enum):
    """The reason why a task runs in a separate process. The values are texts for the log."""

    ISOLATED = "it is declared as isolated"
    SUSPECT = "it was running when its process died"
    QUARANTINE = "tasks of its name and user exceeded a hard time limit, or ended their processes, lately"


class SeparateTask(NamedTuple):
    """A leased task that is to run in a separate process, as it is passed on from process to process."""

    shard_index: int
    task_id: str
    token: int
    user_id: str
    reason: AloneReason = AloneReason.ISOLATED
    max_memory: int = 0
    """Bytes that its process may use; 0: any."""
    fetched_by: str = ""
    """The worker id of the process that fetched it; the supervisor knows."""


def separate_task(lease: Lease, shard_index: int) -> SeparateTask | None:
    """Return the data to pass the task on if it must run in a separate process, else None."""
    definition = registry.find(lease.name) if lease.name else None
    if definition is not None and definition.options.is_separate:
        reason, max_memory = AloneReason.ISOLATED, definition.options.max_memory or 0
    elif lease.is_suspect:
        reason, max_memory = AloneReason.SUSPECT, 0
    elif lease.is_quarantined:
        reason, max_memory = AloneReason.QUARANTINE, 0
    else:
        return None
    return SeparateTask(shard_index, lease.task_id, lease.token, lease.user_id, reason, max_memory)


def warn_about_isolated_tasks() -> None:
    """Log which tasks are declared as isolated, in a worker that can't isolate them."""
    found = (registry.find(name) for name in registry.names())
    names = sorted(task.name for task in found if task is not None and task.options.is_separate)
    if names:
        logger.warning(
            "this worker has no supervisor and runs isolated tasks next to others, without their max_memory: %s; run "
            "manage.py fairque_worker for them",
            ", ".join(names[:10]),
        )


class SeparateTasks:
    """Decides which task gets a process next. Used by the supervisor's main thread only.

    Args:
        slots: processes of such tasks at once.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: list[SeparateTask] = []
        self._running: dict[SeparateTask, float] = {}
        """The running tasks, each with the time when it began."""
        self._suspect_seconds = 0.0
        """Mean seconds for which the last suspects ran; the latest counts half."""
        self._return_due: dict[str, float] = {}
        self._one_at_a_time_since = self._one_at_a_time_until = 0.0

    def add(self, task: SeparateTask, now: float) -> float | None:
        """Let the task wait for a process. If there is no room, return the seconds for which it must be given back."""
        if task.reason is AloneReason.ISOLATED or self._has_room(task, now):
            self._waiting.append(task)
            return None
        if len(self._return_due) > 1000:  # most entries are in the past
            self._return_due = {user: due for user, due in self._return_due.items() if due > now}
        spacing = min(
            max(self._suspect_seconds / 2, MIN_SUSPECT_RETURN_SPACING_SECONDS), MAX_SUSPECT_RETURN_SPACING_SECONDS
        )
        spaced = self._return_due.get(task.user_id, 0.0) + spacing
        due = min(max(now + SUSPECT_RETURN_SECONDS, spaced), now + MAX_SUSPECT_RETURN_SECONDS)
        self._return_due[task.user_id] = due
        return due - now

    def _has_room(self, task: SeparateTask, now: float) -> bool:
        others = [*self._waiting, *self._running]
        if len(others) >= self._slots:
            return False
        if now < self._one_at_a_time_until:
            return all(other.reason is AloneReason.ISOLATED for other in others)
        return task.reason is not AloneReason.QUARANTINE or not any(
            other.reason is AloneReason.QUARANTINE and other.user_id == task.user_id for other in others
        )

    def run_one_at_a_time(self, now: float) -> None:
        """The fork server died with all that ran. Run one suspect after the other, so that its next death has one cause."""
        if now >= self._one_at_a_time_until:
            self._one_at_a_time_since = now
        self._one_at_a_time_until = now + ONE_AT_A_TIME_SECONDS

    def may_have_ended_fork_server(self, task: SeparateTask) -> bool:
        """Whether a task whose process died with the fork server is the cause: it began when suspects ran one at a time."""
        return self._one_at_a_time_since <= self._running[task] < self._one_at_a_time_until

    def waiting_tokens(self, fetched_by: str, shard_index: int) -> set[int]:
        """Return the tokens of the tasks that this process fetched and that are waiting for a separate process."""
        waiting = self._waiting
        return {task.token for task in waiting if task.fetched_by == fetched_by and task.shard_index == shard_index}

    def next(self) -> SeparateTask | None:
        """Return the task that may begin now, or None. The task stays here until `begin`."""
        return self._waiting[0] if self._waiting and len(self._running) < self._slots else None

    def begin(self, task: SeparateTask, now: float) -> None:
        """Record that the task's process has started."""
        self._waiting.remove(task)
        self._running[task] = now

    def end(self, task: SeparateTask, now: float) -> None:
        """Record that the task's process has ended."""
        seconds = now - self._running.pop(task)
        if task.reason is not AloneReason.ISOLATED:
            self._suspect_seconds = (self._suspect_seconds + seconds) / 2

    def forget(self, fetched_by: str) -> None:
        """Remove the waiting tasks of a process that has ended: these were given back with its other leases."""
        self._waiting = [task for task in self._waiting if task.fetched_by != fetched_by]

    def take_waiting(self) -> list[SeparateTask]:
        """Remove and return all tasks that have not begun."""
        waiting, self._waiting = self._waiting, []
        return waiting
