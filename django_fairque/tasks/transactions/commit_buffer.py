"""Commit hooks that collect the tasks of a transaction until its commit.

One commit hook collects the tasks that are enqueued one after the other in the same savepoint, so a rollback of the
savepoint removes both the hook and its tasks. If other code registers a commit hook in between, later tasks get a new
hook, which runs after the other code's hook.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist

from django_fairque import conf
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.records import EventCount
from django_fairque.outbox import has_outbox
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.results import TaskResult
from django_fairque.tasks.transactions.after_commit import PendingBatch, relay_batches, send_batch

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_fairque.engine.model.task import Task
    from django_fairque.outbox.clock import DatabaseClock


class CommitBuffer:
    """The tasks that are waiting for the commit of a transaction. The object is itself the commit hook."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.database = connection.alias
        self._connection = connection
        self.is_over = False
        """Whether the commit is over, or a test has run the hooks. A task that is added later would never be sent."""
        self._batches: defaultdict[str, PendingBatch] = defaultdict(PendingBatch)
        self._requested: set[tuple[str, str]] = set()

    @cached_property
    def has_outbox(self) -> bool:
        """Whether the tasks are stored in the outbox. This is determined at the first task, because a transaction
        without tasks needs no configuration.
        """
        return conf.get_config().outbox and has_outbox(self.database)

    @cached_property
    def _clock(self) -> DatabaseClock:
        from django_fairque.outbox.clock import DatabaseClock

        return DatabaseClock(self.database)

    @property
    def is_alive(self) -> bool:
        """Whether the commit has come or can still come, because the hook's savepoints were not rolled back."""
        if self.is_over:
            return True
        for entry in reversed(self._connection.run_on_commit):  # noqa: SIM110 - half the time of any(), at every save
            if entry[1] is self:
                return True
        return False

    def add(self, queue: str, tasks: Sequence[Task]) -> list[TaskResult]:
        results = [TaskResult(task.task_id, queue, waiting=self, name=task.name) for task in tasks]
        batch = self.batch(queue)
        if self.has_outbox:
            from django_fairque.outbox import rows

            batch.row_of |= rows.store(self.database, queue, tasks, self._clock)
        batch.tasks.update(zip(results, tasks, strict=True))
        return results

    def add_event(self, event: str, key: str, queue: str, make: Callable[[], Task | None]) -> None:
        """Count a model event and add its task, unless this transaction has already recorded an event with the same
        ``key``.

        ``make`` returns None if it has already handled the task; then the event is not counted here either.
        """
        if (event, key) in self._requested:
            if queue in self._batches:
                count = self._batches[queue].counts[event]
                count.fired += 1
                count.coalesced += 1
            return
        if (task := make()) is not None:
            self.add(queue, [task])
            batch = self.batch(queue)
            batch.event_of[task.task_id] = event
            batch.counts.setdefault(event, EventCount()).fired += 1
        self._requested.add((event, key))

    def drop(self, result: TaskResult) -> bool | None:
        """Remove the task and the tasks that depend on it. Return True if this was done now, False if it was done
        before, and None if the task was already sent.
        """
        batch = self.batch(result.queue)
        if result not in batch.tasks:
            return False if result in batch.dropped else None
        hooks = [entry[1] for entry in self._connection.run_on_commit if isinstance(entry[1], CommitBuffer)]
        batches = (
            [hook.batch(result.queue) for hook in hooks] if self in hooks else [batch]
        )  # if this hook is no longer registered, a test is running the hooks
        for changed, tasks in drop_with_dependents(result.id, batches):
            if self.has_outbox:
                from django_fairque.outbox import rows

                changed.row_of |= rows.change(
                    self.database, result.queue, {changed.row_of[task_id] for task_id in tasks}, tasks, self._clock
                )
        return True

    def __call__(self) -> None:
        """Send all tasks that can be sent. Then raise the first error of a task that a call enqueued; the code that
        commits gets this error.
        """
        self.is_over = True
        batches, self._batches = self._batches, defaultdict(PendingBatch)
        if not batches:
            return
        if self.has_outbox:
            relay_batches(self.database, batches)
            return
        errors = [error for queue, batch in batches.items() if (error := send_batch(queue, batch)) is not None]
        if errors:
            raise errors[0]

    def batch(self, queue: str) -> PendingBatch:
        return self._batches[queue]


def alive_buffers(hooks: Iterable[CommitBuffer]) -> set[CommitBuffer]:
    """Return the open connections' commit hooks that can still run (`CommitBuffer.is_alive`). The hooks of each
    connection are read only once.
    """
    given = set(hooks)
    connections_of_them = {hook._connection for hook in given}  # noqa: SLF001 - defined in this module
    to_come = {id(entry[1]) for connection in connections_of_them for entry in connection.run_on_commit}
    return {hook for hook in given if hook.is_over or id(hook) in to_come}


def get_connection(alias: str) -> BaseDatabaseWrapper:
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise TaskUsageError(f"using(database=…): expected one of {known}, got {short(alias)}") from None


def get_commit_buffer(connection: Any) -> CommitBuffer:
    """Return the commit hook for the next task: the transaction's last hook if further tasks may use it, else a new
    hook.

    A task may use an existing hook of this module if the hook has not run and was registered in the same savepoints.
    ``run_on_commit`` is not part of Django's public interface; if its entries have an unknown form, each call gets a
    separate hook. In the transaction of a `TestCase`, each call gets a separate hook too, because tests count the
    hooks.
    """
    try:
        savepoints, hook = connection.run_on_commit[-1][:2]
        # Django records None for each block without a savepoint. Such a block can't be rolled back separately.
        is_here = savepoints - {None} == set(connection.savepoint_ids) - {None}
        is_joined = is_here and not getattr(connection.atomic_blocks[-1], "_from_testcase", False)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        is_joined = False
    if is_joined and isinstance(hook, CommitBuffer) and not hook.is_over:
        return hook
    hook = CommitBuffer(connection)
    connection.on_commit(hook)
    return hook


def drop_with_dependents(
    task_id: str, batches: Sequence[PendingBatch]
) -> Iterator[tuple[PendingBatch, dict[str, Task | None]]]:
    """Remove a task and all tasks that depend on it, directly or indirectly. A task that runs even after a failure only
    loses the dependency.

    Args:
        batches: the tasks for the same queue that wait for the commit of the transaction.

    Yields:
        Each changed batch, and its changes by task id: the task that is sent instead, or None if no task is sent.
    """
    gone = _all_gone(task_id, [task for batch in batches for task in batch.tasks.values()])
    for batch in batches:
        changes: dict[str, Task | None] = {}
        for result, task in list(batch.tasks.items()):
            if task.task_id in gone:
                changes[task.task_id] = None
                batch.dropped.add(result)
                del batch.tasks[result]
            elif not gone.isdisjoint(task.depends_on):
                left = tuple(parent for parent in task.depends_on if parent not in gone)
                changed = task.model_copy(update={"depends_on": left})
                changed = changed.set_payload_bytes(task.payload_bytes, task.task_id if task.has_chosen_id else None)
                changes[task.task_id] = batch.tasks[result] = changed
        if changes:
            yield batch, changes


def _all_gone(task_id: str, tasks: Iterable[Task]) -> set[str]:
    dependents = [task for task in tasks if task.depends_on and task.on_dependency_failure != "run"]
    gone, size = {task_id}, 0
    while len(gone) > size:
        size = len(gone)
        gone |= {task.task_id for task in dependents if not gone.isdisjoint(task.depends_on)}
    return gone


def find_commit_hook(database: str | None) -> CommitBuffer | None:
    """Return the commit hook of the transaction that is open on a database; None if no transaction is open.

    Without a ``database``, use the transaction of the default database, or else of the first database in ``DATABASES``
    that has an open transaction.
    """
    connection = get_connection(database or DEFAULT_DB_ALIAS)
    if database is None and not connection.in_atomic_block and len(connections.settings) > 1:
        connection = _other_in_transaction() or connection
    if connection.in_atomic_block:
        hook = get_commit_buffer(connection)
        if _is_on_commit_supported(connection) or hook.has_outbox:
            return hook
        raise TaskUsageError(
            f"AUTOCOMMIT of database {connection.alias!r} is False, so Django does not report when it commits: use the outbox, "
            "or enqueue after the commit with using(on_commit=False)"
        )
    if connection.connection is not None and not connection.autocommit:
        raise TaskUsageError(
            f"autocommit of database {connection.alias!r} is off and no atomic() is open, so it is unknown when it "
            "commits: use atomic(), or enqueue after the commit with using(on_commit=False)"
        )
    return None


def _other_in_transaction() -> BaseDatabaseWrapper | None:
    """Return a connection of this thread that has an open transaction and runs commit hooks."""
    used = connections.all(initialized_only=True)
    return next(
        (connection for connection in used if connection.in_atomic_block and _is_on_commit_supported(connection)), None
    )


def _is_on_commit_supported(connection: Any) -> bool:
    """Return whether Django runs hooks at the commit. If the settings turn autocommit off, the end of an ``atomic``
    block is not a commit.
    """
    return getattr(connection, "commit_on_exit", True) or connection.settings_dict.get("AUTOCOMMIT", True)


def find_event_hook(database: str) -> CommitBuffer | None:
    """Return the commit hook for a model event. Return None also if commit hooks do not run, because an event must not
    make a save fail.
    """
    connection = get_connection(database)
    is_reported = connection.in_atomic_block and _is_on_commit_supported(connection)
    return get_commit_buffer(connection) if is_reported else None
