"""Tasks that run in a process of their own: suspects, one at a time, and tasks that are declared as isolated.

A suspect was running when its process died, and may have been the cause. If it runs alone the next time, another death has one
cause. The process that fetched such a task does not run it: it passes it on to the supervisor, which starts a process for it.
That process takes the lease over, runs the task, reports its outcome, and ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.tasks import registry
from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WAITING_SUSPECTS = 8
"""Suspects that wait in a worker for its quarantine process, at most one of each user. Others are given back for a while."""
SUSPECT_RETURN_SECONDS = 1.0
"""After which a suspect that a worker had no room for is ready again, at the earliest."""
SUSPECT_RETURN_SPACING_SECONDS = 0.05
"""Between two of one user: however many suspects a user has, a worker fetches 20 a second of them that it gives back."""


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

    def lease(self, worker_id: str) -> Lease:
        """What an outcome needs of its lease."""
        return partial_lease(self.token, self.task_id, worker_id)


def partial_lease(token: int, task_id: str, worker_id: str, retry_count: int = 0) -> Lease:
    """A lease of which only this is known, which is all that an outcome needs."""
    known = {"id": task_id.encode(), "token": b"%d" % token, "lease": b"0", "retries": b"%d" % retry_count}
    return Lease([known.get(field, b"") for field in LEASE_FIELDS], worker_id, 0.0)


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


@dataclass(frozen=True)
class SeparateTaskRequest:
    """A task that waits for its process, or runs in it, and the worker id of the process that fetched it."""

    fetched_by: str
    task: SeparateTask


class SeparateTasks:
    """Decides which task gets a process next. Used by the supervisor's main thread only.

    Args:
        max_isolated: processes of isolated tasks at once.
    """

    def __init__(self, max_isolated: int) -> None:
        self._max_isolated = max_isolated
        self._suspects: deque[SeparateTaskRequest] = deque()
        self._isolated: deque[SeparateTaskRequest] = deque()
        self._running: dict[str, SeparateTaskRequest] = {}
        self._last_user = ""
        self._return_due: dict[str, float] = {}

    def add(self, request: SeparateTaskRequest, now: float) -> float | None:
        """Have it wait for a process; or return the seconds for which it must be given back, because there is no room."""
        if not request.task.why:
            self._isolated.append(request)
            return None
        users = [each.task.user_id for each in self._suspects]
        if len(users) < MAX_WAITING_SUSPECTS and request.task.user_id not in users:
            self._suspects.append(request)
            return None
        return self._return_delay(request.task.user_id, now)

    def _return_delay(self, user_id: str, now: float) -> float:
        if len(self._return_due) > 1000:  # most of them are over
            self._return_due = {user: due for user, due in self._return_due.items() if due > now}
        due = max(now + SUSPECT_RETURN_SECONDS, self._return_due.get(user_id, 0.0) + SUSPECT_RETURN_SPACING_SECONDS)
        self._return_due[user_id] = due
        return due - now

    def waiting_tokens(self, fetched_by: str, shard_index: int) -> set[int]:
        """Of the tasks of that process which wait for a process of their own."""
        waiting = (*self._suspects, *self._isolated)
        return {
            each.task.token
            for each in waiting
            if each.fetched_by == fetched_by and each.task.shard_index == shard_index
        }

    def next(self) -> SeparateTaskRequest | None:
        """The one that may begin now. It stays here until `begin`."""
        if self._suspects and not any(each.task.why for each in self._running.values()):
            return next((each for each in self._suspects if each.task.user_id != self._last_user), self._suspects[0])
        if self._isolated and self._count_isolated() < self._max_isolated:
            return self._isolated[0]
        return None

    def _count_isolated(self) -> int:
        return sum(not each.task.why for each in self._running.values())

    def begin(self, request: SeparateTaskRequest, worker_id: str) -> None:
        """The process of this worker id is for it."""
        if request.task.why:
            self._suspects.remove(request)
            self._last_user = request.task.user_id
        else:
            self._isolated.remove(request)
        self._running[worker_id] = request

    def end(self, worker_id: str) -> SeparateTaskRequest:
        """That process has ended."""
        return self._running.pop(worker_id)

    def forget(self, fetched_by: str) -> None:
        """The process that fetched these has ended: what has not begun was given back with its other leases."""
        for waiting in (self._suspects, self._isolated):
            for each in [each for each in waiting if each.fetched_by == fetched_by]:
                waiting.remove(each)

    def take_waiting(self) -> Sequence[SeparateTaskRequest]:
        """Those that have not begun; nobody waits any more."""
        found = [*self._suspects, *self._isolated]
        self._suspects.clear()
        self._isolated.clear()
        return found
