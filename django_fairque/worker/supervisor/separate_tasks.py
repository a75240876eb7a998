"""Tasks that run alone in a separate process: suspects, tasks in quarantine, and tasks that are declared as isolated.

A suspect is a task that was running when its process died, and that may have been the cause. Each suspect runs in a
separate process, so if that process dies, the cause is certain. A worker runs at most as many separate tasks as it has
slots. Each separate task also occupies a slot of the process that fetched it. A worker runs at most one quarantined
task per user at a time.

The process that fetched such a task passes it on to the supervisor, which starts a process for the task. The new
process takes over the lease, runs the task, reports the outcome, and ends.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.tasks import registry
from django_fairque.worker.common.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

SUSPECT_RETURN_SECONDS = 1.0
"""Minimum seconds until a suspect is ready again after a worker gave it back because it had no room."""
MIN_SUSPECT_RETURN_SPACING_SECONDS = 0.05
MAX_SUSPECT_RETURN_SPACING_SECONDS = 1.0
"""Minimum and maximum spacing in seconds between suspects of the same user that a worker gives back. Within these
limits the spacing is half the mean time for which recent suspects ran, so a worker gives back about one suspect for
each suspect that it runs."""
MAX_SUSPECT_RETURN_SECONDS = 600.0
"""Maximum seconds until a task that was given back is ready again. Suspicion ends ten minutes after a task exceeded its
hard time limit: then other tasks of its name and user are no longer suspects."""
ONE_AT_A_TIME_SECONDS = 600.0
"""Seconds for which suspects run one after the other, after several of them died together with the fork server."""


class AloneReason(Enum):
    """The reason why a task runs in a separate process. The values are texts for the log."""

    ISOLATED = "it is declared as isolated"
    SUSPECT = "it was running when its process died"
    QUARANTINE = "tasks of its name and user exceeded a hard time limit, or ended their processes, lately"


class SeparateTask(NamedTuple):
    """A leased task that must run in a separate process, in the form in which processes pass it on."""

    shard_index: int
    task_id: str
    token: int
    user_id: str
    reason: AloneReason = AloneReason.ISOLATED
    max_memory: int = 0
    """Maximum bytes of memory that the task's process may use; 0 for no limit."""
    fetched_by: str = ""
    """The worker id of the process that fetched the task; the supervisor sets it."""


def separate_task(lease: Lease, shard_index: int) -> SeparateTask | None:
    """Return the data for passing the task on if it must run in a separate process, else None."""
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
    """Log the names of tasks that are declared as isolated. Called in a worker that can't isolate tasks."""
    found = (registry.find(name) for name in registry.names())
    names = sorted(task.name for task in found if task is not None and task.options.is_separate)
    if names:
        logger.warning(
            "this worker has no supervisor and runs isolated tasks next to others, without their max_memory: %s; run "
            "manage.py fairque_worker for them",
            ", ".join(names[:10]),
        )


class SeparateTasks:
    """Decides which task gets a separate process next. Used only by the supervisor's main thread.

    Args:
        slots: maximum number of separate processes at the same time.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._waiting: list[SeparateTask] = []
        self._running: dict[SeparateTask, float] = {}
        """The running tasks, each with the time when it began."""
        self._suspect_seconds = 0.0
        """Mean seconds for which recent suspects ran. The latest suspect has a weight of one half."""
        self._return_due: dict[str, float] = {}
        self._one_at_a_time_since = self._one_at_a_time_until = 0.0

    def add(self, task: SeparateTask, now: float) -> float | None:
        """Add a task to those that wait for a separate process. If there is no room, return the number of seconds for
        which the task must be given back.
        """
        if task.reason is AloneReason.ISOLATED or self._has_room(task, now):
            self._waiting.append(task)
            return None
        if len(self._return_due) > 1000:  # remove the entries that are in the past, which are most of them
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
        """Run one suspect after the other from now on, because the fork server died with all its children. If it dies
        again, the cause is certain.
        """
        if now >= self._one_at_a_time_until:
            self._one_at_a_time_since = now
        self._one_at_a_time_until = now + ONE_AT_A_TIME_SECONDS

    def may_have_ended_fork_server(self, task: SeparateTask) -> bool:
        """Return whether a task whose process died with the fork server is the cause: the task began while suspects ran
        one at a time.
        """
        return self._one_at_a_time_since <= self._running[task] < self._one_at_a_time_until

    def waiting_tokens(self, fetched_by: str, shard_index: int) -> set[int]:
        """Return the tokens of the tasks that the process ``fetched_by`` has fetched and that wait for a separate
        process.
        """
        waiting = self._waiting
        return {task.token for task in waiting if task.fetched_by == fetched_by and task.shard_index == shard_index}

    def next(self) -> SeparateTask | None:
        """Return the task that may begin now, or None. The task stays in the waiting list until `begin` is called."""
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
        """Remove the waiting tasks that an ended process had fetched, because they were given back with its other
        leases.
        """
        self._waiting = [task for task in self._waiting if task.fetched_by != fetched_by]

    def take_waiting(self) -> list[SeparateTask]:
        """Remove and return all tasks that have not begun."""
        waiting, self._waiting = self._waiting, []
        return waiting
