"""Tasks that run in a process of their own: suspects, one at a time, and tasks that are declared as isolated.

A suspect was running when its process died, and may have been the cause. If it runs alone the next time, another death has one
cause. The process that fetched such a task does not run it: it passes it on to the supervisor, which starts a process for it.
That process takes the lease over, runs the task, reports its outcome, and ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_fairque.tasks import registry
from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

MAX_WAITING_SUSPECTS = 8
"""Suspects that wait in a worker for its quarantine process, at most one of each user. Others are given back for a while."""
SUSPECT_RETURN_SECONDS = 1.0
"""After which a suspect that a worker had no room for is ready again, at the earliest."""
MIN_SUSPECT_RETURN_SPACING_SECONDS = 0.05
MAX_SUSPECT_RETURN_SPACING_SECONDS = 1.0
"""Between two of one user: half the time after which the worker has room for another one of this user, within these limits. So
one worker gives back about one for each one that runs; several workers, or one whose suspects run for long, give back more."""
MAX_SUSPECT_RETURN_SECONDS = 600.0
"""After which it is ready again at the latest: ten minutes after a task exceeded its hard time limit, others of its name and user
are no suspects any more."""


class SeparateTask(NamedTuple):
    """A leased task that is to run in a process of its own, as it is passed on from process to process."""

    shard_index: int
    task_id: str
    token: int
    user_id: str
    why: str = ""
    """Why it is in quarantine; empty for a task that is declared as isolated."""
    max_memory: int = 0
    """Bytes that its process may use; 0: any."""
    fetched_by: str = ""
    """The worker id of the process that fetched it; the supervisor knows."""


def separate_task(lease: Lease, shard_index: int) -> SeparateTask | None:
    """How to pass the task on if it must run in a process of its own, else None."""
    definition = registry.find(lease.name) if lease.name else None
    if definition is not None and definition.options.is_separate:
        return SeparateTask(
            shard_index, lease.task_id, lease.token, lease.user_id, max_memory=definition.options.max_memory or 0
        )
    if lease.is_suspect:
        why = "it was running when its process died"
    elif lease.is_quarantined:
        why = "a task of its name and user exceeded its hard time limit lately"
    else:
        return None
    return SeparateTask(shard_index, lease.task_id, lease.token, lease.user_id, why)


def warn_about_isolated_tasks() -> None:
    """Log which tasks are declared as isolated, in a worker that can't isolate them."""
    found = (registry.find(name) for name in registry.names())
    names = sorted(each.name for each in found if each is not None and each.options.is_separate)
    if names:
        logger.warning(
            "this worker has no supervisor and runs isolated tasks next to others, without their max_memory: %s; run "
            "manage.py fairque_worker for them",
            ", ".join(names[:10]),
        )


class SeparateTasks:
    """Decides which task gets a process next. Used by the supervisor's main thread only.

    Args:
        max_isolated: processes of isolated tasks at once.
    """

    def __init__(self, max_isolated: int) -> None:
        self._max_isolated = max_isolated
        self._waiting: list[SeparateTask] = []
        self._running: list[SeparateTask] = []
        self._last_user = ""
        self._suspect_began = 0.0
        self._suspect_seconds = 0.0
        """For how long the last suspects ran: a mean in which the latest counts half."""
        self._return_due: dict[str, float] = {}

    def add(self, task: SeparateTask, now: float) -> float | None:
        """Have it wait for a process; or return the seconds for which it must be given back, because there is no room."""
        users = [each.user_id for each in self._waiting if each.why]
        if not task.why or (len(users) < MAX_WAITING_SUSPECTS and task.user_id not in users):
            self._waiting.append(task)
            return None
        if len(self._return_due) > 1000:  # most of them are over
            self._return_due = {user: due for user, due in self._return_due.items() if due > now}
        spaced = self._return_due.get(task.user_id, 0.0) + self._return_spacing(len(users))
        due = min(max(now + SUSPECT_RETURN_SECONDS, spaced), now + MAX_SUSPECT_RETURN_SECONDS)
        self._return_due[task.user_id] = due
        return due - now

    def _return_spacing(self, users: int) -> float:
        spacing = self._suspect_seconds * users / 2
        return min(max(spacing, MIN_SUSPECT_RETURN_SPACING_SECONDS), MAX_SUSPECT_RETURN_SPACING_SECONDS)

    def waiting_tokens(self, fetched_by: str, shard_index: int) -> set[int]:
        """Of the tasks of that process which wait for a process of their own."""
        waiting = self._waiting
        return {each.token for each in waiting if each.fetched_by == fetched_by and each.shard_index == shard_index}

    def next(self) -> SeparateTask | None:
        """The one that may begin now. It stays here until `begin`."""
        suspects = [each for each in self._waiting if each.why]
        if suspects and not any(each.why for each in self._running):
            return next((each for each in suspects if each.user_id != self._last_user), suspects[0])
        if sum(not each.why for each in self._running) < self._max_isolated:
            return next((each for each in self._waiting if not each.why), None)
        return None

    def begin(self, task: SeparateTask, now: float) -> None:
        """There is a process for it."""
        self._waiting.remove(task)
        self._running.append(task)
        if task.why:
            self._last_user, self._suspect_began = task.user_id, now

    def end(self, task: SeparateTask, now: float) -> None:
        """That process has ended."""
        self._running.remove(task)
        if task.why:
            self._suspect_seconds = (self._suspect_seconds + now - self._suspect_began) / 2

    def forget(self, fetched_by: str) -> None:
        """The process that fetched these has ended: what has not begun was given back with its other leases."""
        self._waiting = [each for each in self._waiting if each.fetched_by != fetched_by]

    def take_waiting(self) -> list[SeparateTask]:
        """Those that have not begun; nobody waits any more."""
        waiting, self._waiting = self._waiting, []
        return waiting
