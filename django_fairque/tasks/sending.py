"""Sending tasks to their queue: at once, or when the database transaction that is open here commits.

The tasks of a transaction travel together, one push for each queue. A hook of the commit takes in the tasks that follow it
directly in the same savepoint, so rolling that back removes both the hook and the tasks. A hook of other code in between begins
a new one, so that everything that was to happen before a task is sent still happens before.
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
    """What waits for one queue."""

    tasks: dict[TaskResult, Task] = field(default_factory=dict)
    event_of: dict[str, str] = field(default_factory=dict)
    """By task id, the model event that asks for it; the others were enqueued by hand."""
    counts: dict[str, EventCount] = field(default_factory=dict)
    row_of: dict[str, str] = field(default_factory=dict)
    """By task id, which row of the outbox has it (`outbox.rows.store`)."""
    dropped: set[TaskResult] = field(default_factory=set)
    """What was not to be sent after all."""


class CommitBuffer:
    """What waits for a commit, which calls it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.database = connection.alias
        self._connection = connection
        self.is_over = False
        """The commit came (or a test ran its hooks): nothing may be added any more, it would stay here."""
        self._batches: defaultdict[str, PendingBatch] = defaultdict(PendingBatch)
        self._requested: set[tuple[str, str]] = set()

    @cached_property
    def has_outbox(self) -> bool:
        """Read when there is something to send: a transaction that sends nothing needs no configuration."""
        return conf.get_config().outbox and has_outbox(self.database)

    @cached_property
    def _clock(self) -> DatabaseClock:
        from django_fairque.outbox.clock import DatabaseClock

        return DatabaseClock(self.database)

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
        results = [TaskResult(task.task_id, queue, waiting=self, name=task.name) for task in tasks]
        batch = self.batch(queue)
        if self.has_outbox:
            from django_fairque.outbox import rows

            batch.row_of |= rows.store(self.database, queue, tasks, self._clock)
        batch.tasks.update(zip(results, tasks, strict=True))
        return results

    def add_event(self, event: str, key: str, queue: str, make: Callable[[], Task | None]) -> None:
        """Count an event and add its task, unless the same (``key``) was added before.

        ``make`` may have put the task elsewhere; then it is not counted here either.
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
        """Not to be sent after all, nor what depends on it; False if it was dropped before, None if it was sent already."""
        batch = self.batch(result.queue)
        if result not in batch.tasks:
            return False if result in batch.dropped else None
        hooks = [entry[1] for entry in self._connection.run_on_commit if isinstance(entry[1], CommitBuffer)]
        batches = (
            [hook.batch(result.queue) for hook in hooks] if self in hooks else [batch]
        )  # else a test runs the hooks
        for changed, tasks in drop_with_dependents(result.id, batches):
            if self.has_outbox:
                from django_fairque.outbox import rows

                changed.row_of |= rows.change(
                    self.database, result.queue, {changed.row_of[each] for each in tasks}, tasks, self._clock
                )
        return True

    def __call__(self) -> None:
        """Send everything that can be sent; the first error of what was enqueued by hand goes to the one who commits."""
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
        """What waits for this queue."""
        return self._batches[queue]


def alive_buffers(hooks: Iterable[CommitBuffer]) -> set[CommitBuffer]:
    """Those of them that are (`CommitBuffer.is_alive`): of many, each connection's hooks are looked through once."""
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


def commit_buffer_of(connection: Any) -> CommitBuffer:
    """The hook to add to now, in a transaction: the last one if more tasks may join it, else a new one.

    They may if it is ours, not over, and was registered in these savepoints. ``run_on_commit`` is not part of Django's
    public interface: if its entries have another form, each call gets a separate hook. Calls in the block that a
    `TestCase` opens get separate hooks, too, because tests distinguish them.
    """
    try:
        savepoints, hook = connection.run_on_commit[-1][:2]
        # Django notes a None for each block without a savepoint: those are never rolled back to by themselves.
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
    """Take the task away, and those that depend on it or on such a one; those that are to run anyhow only depend on fewer.

    Args:
        batches: what waits for the task's queue in the transaction.

    Yields:
        Each batch that was changed, and by id what is to be sent now instead, None for nothing.
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
                left = tuple(each for each in task.depends_on if each not in gone)
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
"""What is wrong with a task, or with those that depend on each other: nothing of them was pushed."""

COMMIT_RETRY_SECONDS = 0.25
"""Seconds for which a call is repeated whose tasks are safe in the outbox: somebody waits for the end of the commit."""


def send_batch(name: str, batch: PendingBatch) -> Exception | None:
    """Push after a commit; the error if something that was enqueued by hand could not be sent.

    What was refused is logged: its ids are known to callers, and it is nowhere else now. A model event's task
    is counted too; code that saves an object gets no error.
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
    """What came of the tasks of a batch, by the id under which each was sent."""

    answers: dict[str, PushResult] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    """With the error, in the order in which they were refused."""

    def refuse(self, task_ids: Iterable[str], error: Exception) -> None:
        self.refused.update(dict.fromkeys(task_ids, error))

    def accept(self, tasks: Sequence[Task], answers: Sequence[object]) -> None:
        known = (answer for answer in answers if isinstance(answer, PushResult))
        self.answers.update(zip((task.task_id for task in tasks), known, strict=False))


def _push(queue: FairQueue, tasks: Sequence[Task], counts: Mapping[str, EventCount], sent: Sent) -> None:
    """Push what belongs together part by part: what is wrong with one of them is no reason to lose the others."""
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
    """Relay what the transaction has written into its outbox. What can't be relayed now stays there for the workers."""
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
    """The counts of this commit and what was not sent before; nothing if no event fired now."""
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
"""A fork begins with none: its parent reports what it has counted."""


def keep_event_counts(queue: str, counts: Mapping[str, EventCount]) -> None:
    """Add to what is to be sent."""
    if not counts:
        return
    unsent = _unsent_counts.get()
    with unsent.lock:
        known = unsent.counts.setdefault(queue, {})
        for event, count in counts.items():
            known.setdefault(event, EventCount()).add(count)


def take_event_counts(queue: str) -> dict[str, EventCount]:
    """All that is to be sent to a queue; the caller sends it, or keeps it again."""
    unsent = _unsent_counts.get()
    with unsent.lock:
        return unsent.counts.pop(queue, {})


_queues_for_commits: WeakKeyDictionary[FairQueue, FairQueue] = WeakKeyDictionary()


def _queue_for_commits(name: str) -> FairQueue:
    """The queue of that name, whose calls are not repeated for long while the server is away."""
    queue = conf.get_queue(name)
    found = _queues_for_commits.get(queue)
    if found is None:
        seconds = min(COMMIT_RETRY_SECONDS, queue.config.request_timeout)
        found = _queues_for_commits[queue] = queue.with_retry_timeout(seconds)
    return found


logger = get_logger("django_fairque.tasks")

_warned: set[str] = set()
"""Databases for which it was logged that their commits can't be noticed."""


def _span_around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> tuple[AbstractContextManager[object], dict[str, str]]:
    """Make the tasks part of the current trace. Return the span to open, and the headers that come with it."""
    if config.tracing and hooks.tracing is not None:
        return hooks.tracing.send_span(options.queue, tasks), hooks.tracing.baggage_header()
    put_in(tasks, current_trace())
    return NO_SPAN, {}


def around_sending(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractContextManager[object]:
    """Around sending tasks: they become part of the current trace, with a span for it where spans are on; then the middleware."""
    span, headers = _span_around_sending(config, options, tasks)
    if headers or config.middleware or options.middleware:
        return Sending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))
    return span


def around_sending_async(
    config: FairQueueConfig, options: TaskOptions, tasks: Sequence[Task]
) -> AbstractAsyncContextManager[object]:
    """The same for coroutines."""
    span, headers = _span_around_sending(config, options, tasks)
    return AsyncSending(span, (*config.middleware, *options.middleware), TaskSend(options.queue, tasks, headers))


_SENDING_PACKAGES = ("django_fairque.", "django.tasks.", "django_tasks.")


def _warn_of_blocked_loop(tasks: Sequence[Task]) -> None:
    """Warn at the line that called ``enqueue()``. Python prints a warning once for each line, by default."""
    if os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):  # as Django's database connections: notebooks run in a loop
        return
    level, frame = 1, sys._getframe()  # noqa: SLF001 - as `warnings` itself: Python 3.12 can skip packages by their path
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
    """Push the tasks, or leave them to the commit; a result for each."""
    if _get_running_loop() is not None:
        _warn_of_blocked_loop(tasks)
    config = conf.get_config()
    if config.tracing or config.middleware or options.middleware:
        with around_sending(config, options, tasks):
            return _send(config, options, tasks)
    put_in(tasks, current_trace())
    return _send(config, options, tasks)


SHELL_MODULES = ("__main__", "__console__", "builtins", "None")
"""Modules of functions that are written in a script, in a shell or in a notebook."""
unimportable: set[str] = set()
"""The names of this process's tasks that no worker can import, as their functions are in one of `SHELL_MODULES`."""


def refuse_unimportable(tasks: Iterable[Task]) -> None:
    """Raise `TaskUsageError` if one of the tasks can't be imported by a worker."""
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
    """As `send`; a transaction is looked for in the thread in which synchronous code runs, where Django's are."""
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
    """The queue's result for each task of a call that it refused in part, or as a whole."""
    return [answer for answer in error.results if isinstance(answer, PushResult)]


def may_wait(config: FairQueueConfig, options: TaskOptions) -> bool:
    """Whether the tasks are sent when a transaction commits, if one is open where they are enqueued: False too where none is."""
    waits = config.enqueue_on_commit if options.on_commit is None else options.on_commit
    return waits and (options.database is not None or open_transactions.may_be_open())


def _leave_to_commit(options: TaskOptions, tasks: Sequence[Task]) -> list[TaskResult] | None:
    """Results of tasks that are sent when the transaction commits; None when there is no transaction."""
    hook = hook_in(options.database)
    if hook is None:
        return None
    # What needs no server to be found wrong is raised now, where it is enqueued, and not at the commit.
    from django_fairque.engine.pushing.batching import check_acyclic

    check_acyclic({task.task_id: task.depends_on for task in tasks if task.depends_on})
    return hook.add(options.queue, tasks)


def hook_in(database: str | None) -> CommitBuffer | None:
    """What calls at the commit of the transaction that is open on a database; None when none is.

    Without a database it is the transaction of the default one, else of the first in ``DATABASES`` where one is open.
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
    """A connection that was used in this thread, has an open transaction, and reports when that commits."""
    used = connections.all(initialized_only=True)
    return next((each for each in used if each.in_atomic_block and _is_on_commit_supported(each)), None)


def _is_on_commit_supported(connection: Any) -> bool:
    """Whether hooks are run at a commit: where autocommit is off by the settings no end of a block is one."""
    return getattr(connection, "commit_on_exit", True) or connection.settings_dict.get("AUTOCOMMIT", True)


def event_hook_in(database: str) -> CommitBuffer | None:
    """As `hook_in` for a model event, which is no reason to refuse a save: None also where commits are not reported."""
    connection = connection_of(database)
    is_reported = connection.in_atomic_block and _is_on_commit_supported(connection)
    return commit_buffer_of(connection) if is_reported else None


def send_for_event(event: str, key: str, options: TaskOptions, make: Callable[[], Task]) -> None:
    """Send what a model event asks for, after the commit, once for each ``key`` of a transaction.

    What the server refuses is logged and counted, and raises no error here: code that saves a model need not handle it.

    Args:
        event: its name, for the counts.
        key: what it asks for: the same key is the same task.
        options: with the ``database`` that the event is about.
        make: builds the task; not called for an event that was recorded before. Its errors are raised.
    """
    database = options.database or DEFAULT_DB_ALIAS
    hook = event_hook_in(database)

    def take() -> Task | None:
        task = make()
        with around_sending(conf.get_config(), options, [task]):
            if (interceptor := conf.current_interceptor()) is None:
                refuse_unimportable([task])
                return task
            interceptor.intercept(replace(options, on_commit=hook is not None), [task])  # an event always waits for it
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
    """Once for each database, not at every save."""
    connection = connection_of(database)
    if database not in _warned and connection.connection is not None and not connection.autocommit:
        _warned.add(database)
        logger.warning(
            "autocommit of database %r is off: what model events ask for is sent at once, maybe before the commit",
            database,
        )
