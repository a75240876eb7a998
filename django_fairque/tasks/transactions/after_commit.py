"""Pushes the tasks of a transaction after its commit.

The tasks of each queue are sent in one push, or relayed from the outbox. If counts of model events can't be sent, they
are kept until the next push.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from django_fairque import conf, hooks, signals
from django_fairque.engine.model.errors import (
    DependencyCycleError,
    PushRefusedError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.engine.model.ids import PerProcess
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.pushing.batching import divide_tasks
from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.results import TaskResult

logger = get_logger("django_fairque.tasks")


@dataclass
class PendingBatch:
    """The tasks for one queue that are waiting for a commit."""

    tasks: dict[TaskResult, Task] = field(default_factory=dict)
    event_of: dict[str, str] = field(default_factory=dict)
    """The model event that sends a task, by task id. Tasks that were enqueued by a call have no entry."""
    counts: dict[str, EventCount] = field(default_factory=dict)
    row_of: dict[str, str] = field(default_factory=dict)
    """The outbox row that contains a task, by task id (`outbox.rows.store`)."""
    dropped: set[TaskResult] = field(default_factory=set)
    """Tasks that were canceled before the commit, and are not sent."""


MAX_LOGGED_TASK_IDS = 100
"""Maximum number of task ids in one log line."""

TASK_ERRORS = (DependencyCycleError, TaskNotFoundError, TaskValidationError)
"""Errors in a task, or in a group of tasks that depend on each other. After such an error, no task of the group was
pushed."""

COMMIT_RETRY_SECONDS = 0.25
"""Seconds for which a failed call is repeated if its tasks are stored in the outbox. The time is short, because the
code that commits is waiting."""


def send_batch(name: str, batch: PendingBatch) -> Exception | None:
    """Push the tasks after a commit. If a task that a call enqueued could not be sent, return the error.

    Refused tasks are logged, because callers may have their ids and no other record of them exists. For a task of a
    model event the failure is also counted, and the code that saves the model gets no error.
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
    if skipped := sent.drop_skipped():
        logger.info("%d tasks for queue %s were left out after the commit: at_limit='skip'", len(skipped), name)
    failure = next(iter(sent.refused.values()), None)
    if failure is not None:
        _log_lost(name, [*sent.refused], failure)
        lost = Counter(batch.event_of[task_id] for task_id in sent.refused if task_id in batch.event_of)
        keep_event_counts(name, {event: EventCount(failed=times, error=str(failure)) for event, times in lost.items()})
    if sent.answers:
        for result, task in batch.tasks.items():
            answer = sent.answers.get(task.task_id)
            if answer is not None and answer.is_known:
                result.record_task_id(answer.task_id)
        answered = [task for task in tasks if task.task_id in sent.answers]
        signals.send_task_pushed(name, answered, [sent.answers[task.task_id] for task in answered])
    return failure if sent.refused.keys() - batch.event_of.keys() else None


@dataclass
class Sent:
    """The results of a push, by the id under which each task was sent."""

    answers: dict[str, PushResult] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)
    """The errors of refused tasks, in the order of the refusals."""

    def refuse(self, task_ids: Iterable[str], error: Exception) -> None:
        self.refused.update(dict.fromkeys(task_ids, error))

    def drop_skipped(self) -> list[str]:
        """Remove the tasks that limits have refused from the refused tasks and return their ids, because no caller
        could handle these errors.
        """
        skipped = [task_id for task_id, answer in self.answers.items() if answer.status == "at_limit"]
        for task_id in skipped:
            self.refused.pop(task_id, None)
        return skipped

    def accept(self, tasks: Sequence[Task], answers: Sequence[object]) -> None:
        known = (answer for answer in answers if isinstance(answer, PushResult))
        self.answers.update(zip((task.task_id for task in tasks), known, strict=False))


def _push(queue: FairQueue, tasks: Sequence[Task], counts: Mapping[str, EventCount], sent: Sent) -> None:
    """Push tasks that depend on each other in one group, and push the groups separately, so that an error in one group
    does not lose the others.
    """
    has_graphs = any(task.depends_on or task.run_id for task in tasks)
    if counts and not has_graphs and len(tasks) <= queue.config.pipeline_batch_size:
        with hooks.around_push(queue.name, tasks):
            answers = queue.deliver(tasks, counts)
        sent.accept(tasks, answers)
        if refused := [answer.task_id for answer in answers if not answer.is_known]:
            sent.refuse(refused, push_refused(queue.name, answers))
        return
    parts = deque(([tasks[index] for index in part.indexes], part.is_joined) for part in divide_tasks(tasks))
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
    """Push the tasks that the transaction has written to its outbox. If a push fails, its rows stay there; workers push
    them later.
    """
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
                result.record_task_id(sent_as[result.id])
        signals.send_task_pushed(name, tasks, answers)
    if relayed.error is not None:
        logger.warning(
            "tasks stay in the outbox of database %r until a worker relays them: %s", database, relayed.error
        )


def _with_unsent_counts(name: str, counts: Mapping[str, EventCount]) -> dict[str, EventCount]:
    """Return the event counts of this commit together with all earlier counts that were not sent. Return none if no
    event fired in this commit.
    """
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
"""The counts that were not sent, for each process. A forked process starts without counts, because its parent sends the
existing counts."""


def keep_event_counts(queue: str, counts: Mapping[str, EventCount]) -> None:
    """Add the event counts to the counts that are not sent yet."""
    if not counts:
        return
    unsent = _unsent_counts.get()
    with unsent.lock:
        known = unsent.counts.setdefault(queue, {})
        for event, count in counts.items():
            known.setdefault(event, EventCount()).add(count)


def take_event_counts(queue: str) -> dict[str, EventCount]:
    """Remove and return all unsent counts of a queue. The caller sends the counts, or returns them with
    `keep_event_counts`.
    """
    unsent = _unsent_counts.get()
    with unsent.lock:
        return unsent.counts.pop(queue, {})


_queues_for_commits: WeakKeyDictionary[FairQueue, FairQueue] = WeakKeyDictionary()


def _queue_for_commits(name: str) -> FairQueue:
    """Return the queue for pushes after a commit. While the server is unreachable, its calls are repeated only for a
    short time.
    """
    queue = conf.get_queue(name)
    found = _queues_for_commits.get(queue)
    if found is None:
        seconds = min(COMMIT_RETRY_SECONDS, queue.config.request_timeout)
        found = _queues_for_commits[queue] = queue.with_retry_timeout(seconds)
    return found
