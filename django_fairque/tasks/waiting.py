"""What waits for the commit of a transaction: tasks, and what model events ask for.

The tasks of a transaction travel together, one push for each queue: a hook of the commit takes in the tasks that
follow it directly in the same savepoint, so rolling that back takes hook and tasks away. A hook of somebody else in
between begins a new one, so that what was to happen before a task is sent still does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from django_fairque.engine.model.errors import short
from django_fairque.engine.model.records import EventCount

from . import delivery
from .dropping import drop_with_dependents
from .errors import TaskUsageError
from .queues import get_config
from .results import TaskResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_fairque.engine.model.task import Task


@dataclass
class Parcel:
    """What waits for one queue."""

    tasks: dict[TaskResult, Task] = field(default_factory=dict)
    event_of: dict[str, str] = field(default_factory=dict)
    """By task id, the model event that asks for it; the others were enqueued by hand."""
    counts: dict[str, EventCount] = field(default_factory=dict)
    row_of: dict[str, str] = field(default_factory=dict)
    """By task id, which row of the outbox has it (`outbox.rows.store`)."""
    dropped: set[TaskResult] = field(default_factory=set)
    """What was not to be sent after all."""


class Waiting:
    """What waits for a commit, which calls it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.database = connection.alias
        self._connection = connection
        self.is_over = False
        """The commit came (or a test ran its hooks): nothing may be added any more, it would stay here."""
        self._parcels: dict[str, Parcel] = {}
        self._asked: set[tuple[str, str]] = set()

    @cached_property
    def has_outbox(self) -> bool:
        """Asked for when there is something to send: a transaction that sends nothing needs no configuration."""
        from django_fairque.outbox import has_outbox

        return get_config().outbox and has_outbox(self.database)

    @property
    def is_alive(self) -> bool:
        """Whether the commit came or can still come: what it was part of was not rolled back."""
        if self.is_over:
            return True
        for entry in reversed(self._connection.run_on_commit):  # noqa: SIM110 - half the time of any(), at every save
            if entry[1] is self:
                return True
        return False

    def add(self, queue: str, tasks: Sequence[Task]) -> list[TaskResult]:
        results = [TaskResult(task.task_id, queue, waiting=self) for task in tasks]
        if self.has_outbox:
            from django_fairque.outbox import rows

            self.parcel(queue).row_of |= rows.store(self.database, queue, tasks)
        self.parcel(queue).tasks.update(zip(results, tasks, strict=True))
        return results

    def add_event(self, event: str, key: str, queue: str, make: Callable[[], Task | None]) -> None:
        """Count an event and add the task it asks for, unless it has asked for the same (``key``) before.

        ``make`` may have put the task elsewhere; then it is not counted here either.
        """
        if (event, key) in self._asked:
            if queue in self._parcels:
                count = self._parcels[queue].counts[event]
                count.fired += 1
                count.coalesced += 1
            return
        if (task := make()) is not None:
            self.add(queue, [task])
            parcel = self.parcel(queue)
            parcel.event_of[task.task_id] = event
            parcel.counts.setdefault(event, EventCount()).fired += 1
        self._asked.add((event, key))

    def drop(self, result: TaskResult) -> bool | None:
        """Not to be sent after all, nor what depends on it; False if it was dropped before, None if it was sent already."""
        parcel = self.parcel(result.queue)
        if result not in parcel.tasks:
            return False if result in parcel.dropped else None
        hooks = [entry[1] for entry in self._connection.run_on_commit if isinstance(entry[1], Waiting)]
        parcels = (
            [hook.parcel(result.queue) for hook in hooks] if self in hooks else [parcel]
        )  # else a test runs the hooks
        for changed, tasks in drop_with_dependents(result.id, parcels):
            if self.has_outbox:
                from django_fairque.outbox import rows

                changed.row_of |= rows.change(
                    self.database, result.queue, {changed.row_of[each] for each in tasks}, tasks
                )
        return True

    def __call__(self) -> None:
        """Send everything that can be sent; the first error of what was enqueued by hand goes to the one who commits."""
        self.is_over = True
        parcels, self._parcels = self._parcels, {}
        if not parcels:
            return
        if self.has_outbox:
            delivery.relay_batches(self.database, parcels)
            return
        errors = [
            error for queue, parcel in parcels.items() if (error := delivery.send_batch(queue, parcel)) is not None
        ]
        if errors:
            raise errors[0]

    def parcel(self, queue: str) -> Parcel:
        """What waits for this queue."""
        parcel = self._parcels.get(queue)
        if parcel is None:
            parcel = self._parcels[queue] = Parcel()
        return parcel


def commit_buffer_of(connection: BaseDatabaseWrapper) -> Waiting:
    """The hook to add to now, in a transaction: the last one if it is ours and may be joined, else a new one."""
    hook = _last_hook(connection)
    if hook is None:
        hook = Waiting(connection)
        connection.on_commit(hook)
    return hook


def alive_buffers(hooks: Iterable[Waiting]) -> set[Waiting]:
    """Those of them that are (`Waiting.is_alive`): of many, each connection's hooks are looked through once."""
    given = set(hooks)
    connections_of_them = {hook._connection for hook in given}  # noqa: SLF001 - of this module
    to_come = {id(entry[1]) for connection in connections_of_them for entry in connection.run_on_commit}
    return {hook for hook in given if hook.is_over or id(hook) in to_come}


def connection_of(alias: str) -> BaseDatabaseWrapper:
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise TaskUsageError(f"using(database=…): expected one of {known}, got {short(alias)}") from None


def _last_hook(connection: Any) -> Waiting | None:
    """The hook that was registered last, if more tasks may join it: ours, not over, registered in these savepoints.

    Its parts are not Django's public interface: where they look otherwise, every call has a hook of its own. So it
    has in the block that a `TestCase` opens, where tests tell the hooks of one moment from those of another.
    """
    try:
        savepoints, hook = connection.run_on_commit[-1][:2]
        # Django notes a None for each block without a savepoint: those are never rolled back to by themselves.
        savepoints, here = savepoints - {None}, set(connection.savepoint_ids) - {None}
        block = connection.atomic_blocks[-1]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None
    if not isinstance(hook, Waiting) or hook.is_over or savepoints != here or getattr(block, "_from_testcase", False):
        return None
    return hook
