"""Sending tasks to their queue: at once, or when the open database transaction commits.

The tasks of a transaction are sent together, in one push for each queue. One commit hook collects the tasks that are
enqueued directly after each other in the same savepoint, so a rollback of the savepoint removes both the hook and its
tasks. If other code registers a commit hook in between, later tasks get a new hook, which runs after that code's hook.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from asyncio import _get_running_loop
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from django_fairque import conf, hooks, signals
from django_fairque.engine.model.errors import (
    DependencyCycleError,
    PushRefusedError,
    TaskNotFoundError,
    TaskValidationError,
    short,
)
from django_fairque.engine.model.ids import PerProcess
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.pushing.batching import parts_of
from django_fairque.outbox import has_outbox
from django_fairque.safely import get_logger
from django_fairque.tasks import open_transactions
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.middleware import AsyncSending, Sending, TaskSend
from django_fairque.tasks.results import TaskResult
from django_fairque.tasks.tracing import NO_SPAN, current_trace, put_in

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_fairque.conf.models import FairQueueConfig
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.outbox.clock import DatabaseClock
    from django_fairque.tasks.options import TaskOptions


@dataclass
class PendingBatch:
    """The tasks for one queue that are waiting for a commit."""

    tasks: dict[TaskResult, Task] = field(default_factory=dict)
    event_of: dict[str, str] = field(default_factory=dict)
    """By task id, the model event that sends the task. Tasks without an event were enqueued by a call."""
    counts: dict[str, EventCount] = field(default_factory=dict)
    row_of: dict[str, str] = field(default_factory=dict)
    """By task id, the outbox row that contains the task (`outbox.rows.store`)."""
    dropped: set[TaskResult] = field(default_factory=set)
    """Canceled tasks, which are not sent."""


class CommitBuffer:
    """The tasks that are waiting for the commit of a transaction. The object is itself the commit hook."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.database = connection.alias
        self._connection = connection
        self.is_over = False
        """True after the commit (or after a test ran its hooks). A task that is added later would never be sent."""
        self._batches: defaultdict[str, PendingBatch] = defaultdict(PendingBatch)
        self._requested: set[tuple[str, str]] = set()

    @cached_property
    def has_outbox(self) -> bool:
        """Whether the tasks are stored in the outbox. Read on the first task: a transaction without tasks needs no
        configuration."""
        return conf.get_config().outbox and has_outbox(self.database)

    @cached_property
    def _clock(self) -> DatabaseClock:
        from django_fairque.outbox.clock import DatabaseClock

        return DatabaseClock(self.database)

    @property
    def is_alive(self) -> bool:
        """Whether the commit came or can still come: the hook's savepoints were not rolled back."""
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
        """Count an event and add its task, unless this transaction has already recorded the event with the same
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
        """Remove the task and the tasks that depend on it. Return False if it was removed before, None if it was already sent."""
        batch = self.batch(result.queue)
        if result not in batch.tasks:
            return False if result in batch.dropped else None
        hooks = [entry[1] for entry in self._connection.run_on_commit if isinstance(entry[1], CommitBuffer)]
        batches = (
            [hook.batch(result.queue) for hook in hooks] if self in hooks else [batch]
        )  # otherwise a test is running the hooks
        for changed, tasks in drop_with_dependents(result.id, batches):
            if self.has_outbox:
                from django_fairque.outbox import rows

                changed.row_of |= rows.change(
                    self.database, result.queue, {changed.row_of[task_id] for task_id in tasks}, tasks, self._clock
                )
        return True

    def __call__(self) -> None:
        """Send all tasks that can be sent. Then raise the first error of a task that was enqueued by a call, to the
        code that commits."""
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
    """Return the hooks for which `CommitBuffer.is_alive` is true. Reads the hooks of each connection only once."""
    given = set(hooks)
    connections_of_them = {hook._connection for hook in given}  # noqa: SLF001 - defined in this module
    to_come = {id(entry[1]) for connection in connections_of_them for entry in connection.run_on_commit}
    return {hook for hook in given if hook.is_over or id(hook) in to_come}


def connection_of(alias: str) -> BaseDatabaseWrapper:
    try:
        return connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise TaskUsageError(f"using(database=…): expected one of {known}, got {short(alias)}") from None


def commit_buffer_of(connection: Any) -> CommitBuffer:
    """Return the commit hook for the next task: the transaction's last hook if tasks may still join it, else a new one.

    Tasks may join a hook of this module that has not run and was registered in the same savepoints. ``run_on_commit``
    is not part of Django's public interface: if its entries have another form, each call gets a separate hook. Calls in
    the block that a `TestCase` opens get separate hooks, too, because tests distinguish them.
    """
    try:
        savepoints, hook = connection.run_on_commit[-1][:2]
        # Django records a None for each block without a savepoint. Such a block is never rolled back alone.
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
    """Remove the task and, transitively, the tasks that depend on it. A task that runs even after a failure only loses
    the dependency.

    Args:
        batches: the waiting tasks for the task's queue in the transaction.

    Yields:
        Each batch that was changed, and its changes by task id: the task that is sent instead, None for no task.
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
                changed = changed.carrying(task.payload_bytes, task.task_id if task.has_chosen_id else None)
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


MAX_LOGGED_TASK_IDS = 100
"""Ids named in a log line."""

TASK_ERRORS = (DependencyCycleError, TaskNotFoundError, TaskValidationError)
"""Errors in a task, or in a group of tasks that depend on each other. No task of the group was pushed."""

COMMIT_RETRY_SECONDS = 0.25
"""Seconds for which a failed call is repeated if its tasks are safe in the outbox. A caller is waiting for the end of
the commit."""


def send_batch(name: str, batch: PendingBatch) -> Exception | None:
    """Push the tasks after a commit. Return the error if a task that was enqueued by a call could not be sent.

    Refused tasks are logged, because their ids may be known to callers and no other record is left. For a task of a
    model event the failure is counted; the code that saves the model gets no error.
    """
    if not batch.tasks and not batch.counts:
        return None
    tasks = list(batch.tasks.values())
    counts = _with_unsent_counts(name, batch.counts)
    sent = Sent()
    try:
        _push(conf.get_queue(name), tasks, counts, sent)
    except Exception as error:  # noqa: BLE001 - logged here, raised after the other queues' tasks were sent
        keep_event_counts(name, counts)
        known = sent.answers.keys() | sent.refused.keys()
        sent.refuse([task.task_id for task in tasks if task.task_id not in known], error)
    failure = next(iter(sent.refused.values()), None)
    if failure is not None:
        _log_lost(name, [*sent.refused], failure)
        lost = Counter(batch.event_of[task_id] for task_id in sent.refused if task_id in batch.event_of)
        keep_event_counts(name, {event: EventCount(failed=times, error=str(failure)) for event, times in lost.items()})
    if sent.answers:
        for result, task in batch.tasks.items():
            answer = sent.answers.get(task.task_id)
            if answer is not None and answer.is_known:
                result.sent_as(answer.task_id)
        answered = [task for task in tasks if task.task_id in sent.answers]
        signals.send_task_pushed(name, answered, [sent.answers[task.task_id] for task in answered])
    return failure if sent.refused.keys() - batch.event_of.keys() else None


@dataclass
class Sent:
    """The outcome of each task of a batch, by the id under which it was sent."""

    answers: dict[str, PushResult] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    """With the error, in the order of the refusals."""

    def refuse(self, task_ids: Iterable[str], error: Exception) -> None:
        self.refused.update(dict.fromkeys(task_ids, error))

    def accept(self, tasks: Sequence[Task], answers: Sequence[object]) -> None:
        known = (answer for answer in answers if isinstance(answer, PushResult))
        self.answers.update(zip((task.task_id for task in tasks), known, strict=False))


def _push(queue: FairQueue, tasks: Sequence[Task], counts: Mapping[str, EventCount], sent: Sent) -> None:
    """Push tasks that depend on each other together, and the other groups separately: an error in one group must not
    lose the others."""
    has_graphs = any(task.depends_on or task.run_id for task in tasks)
    if counts and not has_graphs and len(tasks) <= queue.config.pipeline_batch_size:
        with hooks.around_push(queue.name, tasks):
            answers = queue.deliver(tasks, counts)
        sent.accept(tasks, answers)
        if refused := [answer.task_id for answer in answers if not answer.is_known]:
            sent.refuse(refused, push_refused(queue.name, answers))
        return
    parts = deque(([tasks[index] for index in part.indexes], part.is_joined) for part in parts_of(tasks))
    while parts:
        some, is_joined = parts.popleft()
        try:
            with hooks.around_push(queue.name, some):
                answers = queue.push_batch(some)
            sent.accept(some, answers)
        except PushRefusedError as error:
            sent.accept(some, error.results)
            sent.refuse(error.refused, error)
        except TASK_ERRORS as error:
            if is_joined and len(some) > 1:
                parts.extendleft(([task], True) for task in reversed(some))
            else:
                sent.refuse([task.task_id for task in some], error)
    if counts:
        queue.deliver([], counts)


def relay_batches(database: str, batches: Mapping[str, PendingBatch]) -> None:
    """Push the tasks that the transaction has written into its outbox. Rows that fail stay there; workers push them later."""
    from django_fairque.outbox.relay import relay_rows

    users = {task.user_id for batch in batches.values() for task in batch.tasks.values()}
    committed = {row for batch in batches.values() for row in batch.row_of.values()}
    counts = {name: unsent for name, batch in batches.items() if (unsent := _with_unsent_counts(name, batch.counts))}
    try:
        relayed = relay_rows(database, users, counts, committed=committed, queue_of=_queue_for_commits)
    except Exception:
        for name, kept in counts.items():
            keep_event_counts(name, kept)
        logger.exception("the outbox of database %r could not be relayed after a commit; a worker will do it", database)
        return
    for name, untold in relayed.uncounted.items():
        keep_event_counts(name, untold)
    for name, tasks, answers in relayed.pushed:
        sent_as = {task.task_id: answer.task_id for task, answer in zip(tasks, answers, strict=True)}
        for result in batches[name].tasks if name in batches else ():
            if result.id in sent_as:
                result.sent_as(sent_as[result.id])
        signals.send_task_pushed(name, tasks, answers)
    if relayed.error is not None:
        logger.warning(
            "tasks stay in the outbox of database %r until a worker relays them: %s", database, relayed.error
        )


def _with_unsent_counts(name: str, counts: Mapping[str, EventCount]) -> dict[str, EventCount]:
    """Take the counts of this commit and all earlier unsent counts. Take none if no event fired in this commit."""
    if not counts:
        return {}
    keep_event_counts(name, counts)
    return take_event_counts(name)


def _log_lost(queue: str, ids: Sequence[str], error: Exception) -> None:
    named = ", ".join(ids[:MAX_LOGGED_TASK_IDS]) + (" …" if len(ids) > MAX_LOGGED_TASK_IDS else "")
    logger.error(
        "%d tasks for queue %s could not be sent after the commit (%s): %s",
        *(len(ids), queue, error, named),
        exc_info=error,
    )


class _UnsentCounts:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, dict[str, EventCount]] = {}


_unsent_counts = PerProcess(_UnsentCounts)
"""By process: a forked process starts with no counts, because its parent reports the existing ones."""


def keep_event_counts(queue: str, counts: Mapping[str, EventCount]) -> None:
    """Add the counts to those that are not sent yet."""
    if not counts:
        return
    unsent = _unsent_counts.get()
    with unsent.lock:
        known = unsent.counts.setdefault(queue, {})
        for event, count in counts.items():
            known.setdefault(event, EventCount()).add(count)


def take_event_counts(queue: str) -> dict[str, EventCount]:
    """Take all unsent counts of a queue. The caller sends them, or gives them to `keep_event_counts` again."""
    unsent = _unsent_counts.get()
    with unsent.lock:
        return unsent.counts.pop(queue, {})


_queues_for_commits: WeakKeyDictionary[FairQueue, FairQueue] = WeakKeyDictionary()


def _queue_for_commits(name: str) -> FairQueue:
    """Get the queue with a short limit for repeated calls while the server is unreachable."""
    queue = conf.get_queue(name)
    found = _queues_for_commits.get(queue)
    if found is None:
        seconds = min(COMMIT_RETRY_SECONDS, queue.config.request_timeout)
        found = _queues_for_commits[queue] = queue.with_retry_timeout(seconds)
    return found


logger = get_logger("django_fairque.tasks")

_warned: set[str] = set()
"""Databases for which a warning was logged that their commits are not reported."""


def _span_around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> tuple[AbstractContextManager[object], dict[str, str]]:
    """Attach the current trace to the tasks. Return the span to open, and the headers that belong to it."""
    if config.tracing and hooks.tracing is not None:
        return hooks.tracing.send_span(options.queue, tasks), hooks.tracing.baggage_header()
    put_in(tasks, current_trace())
    return NO_SPAN, {}


def around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractContextManager[object]:
    """Return the context manager around sending: it attaches the current trace, opens a span if tracing is on, and runs
    middleware."""
    span, headers = _span_around_sending(config, options, tasks)
    if headers or config.middleware or options.middleware:
        return Sending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))
    return span


def around_sending_async(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractAsyncContextManager[object]:
    """Return the same context manager for coroutines."""
    span, headers = _span_around_sending(config, options, tasks)
    return AsyncSending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))


_SENDING_PACKAGES = ("django_fairque.", "django.tasks.", "django_tasks.")


def _warn_of_blocked_loop(tasks: Sequence[Task]) -> None:
    """Warn with the line that called ``enqueue()``. By default Python prints a warning once for each line."""
    if os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):  # notebooks run in a loop, and Django accepts it
        return
    level, frame = 1, sys._getframe()  # noqa: SLF001 - as `warnings` does; only Python 3.12 can skip packages by path
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_SENDING_PACKAGES):
        level, frame = level + 1, frame.f_back
    name = tasks[0].name if tasks else "a task"
    warnings.warn(
        f"enqueue() of {name} was called in a coroutine and blocks its event loop until the server has answered: use "
        "`await task.aenqueue(…)`, or aenqueue_many() for several",
        RuntimeWarning,
        stacklevel=level,
    )


def send(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Push the tasks, or leave them to the commit. Return a result for each."""
    if _get_running_loop() is not None:
        _warn_of_blocked_loop(tasks)
    config = conf.get_config()
    if config.tracing or config.middleware or options.middleware:
        with around_sending(config, options, tasks):
            return _send(config, options, tasks)
    put_in(tasks, current_trace())
    return _send(config, options, tasks)


SHELL_MODULES = ("__main__", "__console__", "builtins", "None")
"""Modules of functions that are defined in a script, a shell or a notebook."""
unimportable: set[str] = set()
"""The names of this process's tasks that no worker can import, because their functions are in one of `SHELL_MODULES`."""


def refuse_unimportable(tasks: Iterable[Task]) -> None:
    """Raise `TaskUsageError` if a worker can't import one of the tasks."""
    for task in tasks:
        if task.name in unimportable:
            raise TaskUsageError(
                f"task {task.name!r} is declared in a script or a shell, and no worker can import it, so nothing was sent: move "
                "it into a module that workers import, such as tasks.py of an app; or give it the name of a worker's task"
            )


def _send(config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    if (interceptor := conf.current_interceptor()) is not None:
        return interceptor.intercept(options, tasks)
    if unimportable:
        refuse_unimportable(tasks)
    if may_wait(config, options) and (left := _leave_to_commit(options, tasks)) is not None:
        return left
    queue = conf.get_queue(options.queue)
    try:
        if config.tracing:
            with hooks.around_push(options.queue, tasks):
                pushed = queue.push_batch(tasks)
        else:
            pushed = queue.push_batch(tasks)
    except PushRefusedError as error:
        signals.send_task_pushed(options.queue, tasks, _answers(error))
        raise
    signals.send_task_pushed(options.queue, tasks, pushed)
    return [
        TaskResult(answer.task_id, options.queue, name=task.name) for task, answer in zip(tasks, pushed, strict=True)
    ]


async def asend(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    """Do the same as `send`. Transactions are looked up in the thread that runs synchronous code, because Django's are
    open there."""
    config = conf.get_config()
    if config.tracing or config.middleware or options.middleware:
        async with around_sending_async(config, options, tasks):
            return await _asend(config, options, tasks)
    put_in(tasks, current_trace())
    return await _asend(config, options, tasks)


async def _asend(config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult]:
    if (interceptor := conf.current_interceptor()) is not None:
        return await sync_to_async(interceptor.intercept)(options, tasks)
    if unimportable:
        refuse_unimportable(tasks)
    if may_wait(config, options) and (left := await sync_to_async(_leave_to_commit)(options, tasks)) is not None:
        return left
    queue = await conf.aget_queue(options.queue)
    try:
        if config.tracing:
            with hooks.around_push(options.queue, tasks):
                pushed = await queue.push_batch(tasks)
        else:
            pushed = await queue.push_batch(tasks)
    except PushRefusedError as error:
        await signals.asend_task_pushed(options.queue, tasks, _answers(error))
        raise
    await signals.asend_task_pushed(options.queue, tasks, pushed)
    return [
        TaskResult(answer.task_id, options.queue, name=task.name) for task, answer in zip(tasks, pushed, strict=True)
    ]


def _answers(error: PushRefusedError) -> list[PushResult]:
    """Return the queue's result for each task of a refused call."""
    return [answer for answer in error.results if isinstance(answer, PushResult)]


def may_wait(config: FairQueueConfig, options: TaskOptions) -> bool:
    """Return whether the tasks wait for a commit if a transaction is open. False if certainly none is open."""
    waits = config.enqueue_on_commit if options.on_commit is None else options.on_commit
    return waits and (options.database is not None or open_transactions.may_be_open())


def _leave_to_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    """Add the tasks to the commit hook of the open transaction. Return None if there is no transaction."""
    hook = hook_in(options.database)
    if hook is None:
        return None
    # Errors that can be found without a server are raised here, in the code that enqueues, and not at the commit.
    from django_fairque.engine.pushing.batching import check_acyclic

    check_acyclic({task.task_id: task.depends_on for task in tasks if task.depends_on})
    return hook.add(options.queue, tasks)


def hook_in(database: str | None) -> CommitBuffer | None:
    """Return the commit hook of the transaction that is open on a database; None if none is open.

    Without a ``database``, take the transaction of the default database, else of the first one in ``DATABASES`` that
    has one.
    """
    connection = connection_of(database or DEFAULT_DB_ALIAS)
    if database is None and not connection.in_atomic_block and len(connections.settings) > 1:
        connection = _other_in_transaction() or connection
    if connection.in_atomic_block:
        hook = commit_buffer_of(connection)
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
    """Find a connection of this thread that has an open transaction and reports its commit."""
    used = connections.all(initialized_only=True)
    return next(
        (connection for connection in used if connection.in_atomic_block and _is_on_commit_supported(connection)), None
    )


def _is_on_commit_supported(connection: Any) -> bool:
    """Return whether Django runs hooks at the commit. If the settings turn autocommit off, the end of a block is no commit."""
    return getattr(connection, "commit_on_exit", True) or connection.settings_dict.get("AUTOCOMMIT", True)


def event_hook_in(database: str) -> CommitBuffer | None:
    """Return the commit hook for a model event. Return None also if commits are not reported: an event must not make a
    save fail."""
    connection = connection_of(database)
    is_reported = connection.in_atomic_block and _is_on_commit_supported(connection)
    return commit_buffer_of(connection) if is_reported else None


def send_for_event(event: str, key: str, options: TaskOptions, make: Callable[[], Task]) -> None:
    """Send the task of a model event after the commit, once for each ``key`` in a transaction.

    Tasks that the server refuses are logged and counted, and raise no error here: code that saves a model need not
    handle it.

    Args:
        event: its name, for the counts.
        key: identifies the task: equal keys mean the same task.
        options: with the ``database`` that the event is about.
        make: builds the task; not called if the event was recorded before. Its errors are raised.
    """
    database = options.database or DEFAULT_DB_ALIAS
    hook = event_hook_in(database)

    def take() -> Task | None:
        task = make()
        with around_sending(conf.get_config(), options, [task]):
            if (interceptor := conf.current_interceptor()) is None:
                refuse_unimportable([task])
                return task
            interceptor.intercept(replace(options, on_commit=hook is not None), [task])
            return None

    if hook is not None:
        hook.add_event(event, key, options.queue, take)
    elif (task := take()) is None:
        return
    elif conf.get_config().outbox and has_outbox(database):
        with transaction.atomic(using=database):
            commit_buffer_of(connection_of(database)).add_event(event, key, options.queue, lambda: task)
    else:
        _warn_without_autocommit(database)
        batch = PendingBatch({TaskResult(task.task_id, options.queue): task}, {task.task_id: event})
        batch.counts[event] = EventCount(fired=1)
        send_batch(options.queue, batch)


def _warn_without_autocommit(database: str) -> None:
    """Log the warning once for each database, and not at every save."""
    connection = connection_of(database)
    if database not in _warned and connection.connection is not None and not connection.autocommit:
        _warned.add(database)
        logger.warning(
            "autocommit of database %r is off: what model events ask for is sent at once, maybe before the commit",
            database,
        )
