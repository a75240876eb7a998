"""Handing a parcel to its queue after the commit, and what there is to do when that fails."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import (
    DependencyCycleError,
    PushRefusedError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.pushing.batching import parts_of

from . import event_counts, lifecycle
from .queues import brief_queue, get_queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue

    from .results import TaskResult
    from .waiting import Parcel

MOST_IDS = 100
"""Ids named in a log line."""

OF_A_TASK = (DependencyCycleError, TaskNotFoundError, TaskValidationError)
"""What is wrong with a task, or with those that depend on each other: nothing of them was pushed."""

logger = logging.getLogger("django_fairque.tasks")


def send_batch(name: str, parcel: Parcel) -> Exception | None:
    """Push after a commit; the error if something that was enqueued by hand could not be sent.

    What was refused is logged: its ids are known to callers, and it is nowhere else now. What a model event asked for
    is counted too; it is no error of the one who saved something.
    """
    if not parcel.tasks and not parcel.counts:
        return None
    tasks = list(parcel.tasks.values())
    counts = _with_untold(name, parcel.counts)
    sent = Sent()
    try:
        _push(get_queue(name), tasks, counts, sent)
    except Exception as error:  # noqa: BLE001 - logged here, raised after the other queues' tasks were sent
        event_counts.keep_event_counts(name, counts)
        known = {*sent.answers, *sent.refused}
        sent.refuse([task.task_id for task in tasks if task.task_id not in known], error)
    if sent.failure is not None:
        _log_lost(name, sent.refused, sent.failure)
        _count_lost(name, parcel, sent.refused, sent.failure)
    if sent.answers:
        told = [task for task in tasks if task.task_id in sent.answers]
        _tell(parcel.tasks, sent.answers)
        lifecycle.send_task_pushed(name, told, [sent.answers[task.task_id] for task in told])
    return sent.failure if any(task_id not in parcel.event_of for task_id in sent.refused) else None


@dataclass
class Sent:
    """What came of the tasks of a parcel, by the id under which each was sent."""

    answers: dict[str, PushResult] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failure: Exception | None = None
    """The first that refused some."""

    def refuse(self, task_ids: Sequence[str], error: Exception) -> None:
        self.refused += task_ids
        self.failure = self.failure or error

    def hear(self, tasks: Sequence[Task], answers: Sequence[object]) -> None:
        known = (answer for answer in answers if isinstance(answer, PushResult))
        self.answers.update(zip((task.task_id for task in tasks), known, strict=False))


def _push(queue: FairQueue, tasks: Sequence[Task], counts: Mapping[str, EventCount], sent: Sent) -> None:
    """Push what belongs together part by part: what is wrong with one of them is no reason to lose the others."""
    has_graphs = any(task.depends_on or task.run_id for task in tasks)
    if counts and not has_graphs and len(tasks) <= queue.config.pipeline_batch_size:
        sent.hear(tasks, answers := queue.deliver(tasks, counts))
        if refused := [answer.task_id for answer in answers if not answer.is_known]:
            sent.refuse(refused, push_refused(queue.name, answers))
        return
    parts = deque(([tasks[index] for index in part.indexes], part.is_joined) for part in parts_of(tasks))
    while parts:
        some, is_joined = parts.popleft()
        try:
            sent.hear(some, queue.push_batch(some))
        except PushRefusedError as error:
            sent.hear(some, error.results)
            sent.refuse(error.refused, error)
        except OF_A_TASK as error:
            if is_joined and len(some) > 1:
                parts.extendleft(([task], True) for task in reversed(some))
            else:
                sent.refuse([task.task_id for task in some], error)
    if counts:
        queue.deliver([], counts)


def relay_batches(database: str, parcels: Mapping[str, Parcel]) -> None:
    """Relay what the transaction has written into its outbox. What can't be relayed now stays there for the workers."""
    from django_fairque.outbox.relay import relay as relay_rows

    users = {task.user_id for parcel in parcels.values() for task in parcel.tasks.values()}
    counts = {name: told for name, parcel in parcels.items() if (told := _with_untold(name, parcel.counts))}
    try:
        relayed = relay_rows(database, users, counts, queue_of=brief_queue)
    except Exception:
        for name, kept in counts.items():
            event_counts.keep_event_counts(name, kept)
        logger.exception("the outbox of database %r could not be relayed after a commit; a worker will do it", database)
        return
    for name, untold in relayed.uncounted.items():
        event_counts.keep_event_counts(name, untold)
    for name, tasks, answers in relayed.pushed:
        mine = parcels[name].tasks if name in parcels else {}
        by_id = {answer_task.task_id: answer for answer_task, answer in zip(tasks, answers, strict=True)}
        for result in list(mine):
            if result.id in by_id:
                result.sent_as(by_id[result.id].task_id)
        lifecycle.send_task_pushed(name, tasks, answers)
    if relayed.error is not None:
        logger.warning(
            "tasks stay in the outbox of database %r until a worker relays them: %s", database, relayed.error
        )


def _with_untold(name: str, counts: Mapping[str, EventCount]) -> dict[str, EventCount]:
    """The counts of this commit and what was not told before; nothing if no event fired now."""
    if not counts:
        return {}
    told = event_counts.take_event_counts(name)
    for event, count in counts.items():
        told.setdefault(event, EventCount()).add(count)
    return told


def _tell(results: Mapping[TaskResult, Task], answers: Mapping[str, PushResult]) -> None:
    for result, task in results.items():
        answer = answers.get(task.task_id)
        if answer is not None and answer.is_known:
            result.sent_as(answer.task_id)


def _count_lost(name: str, parcel: Parcel, refused: Sequence[str], error: Exception) -> None:
    lost = Counter(parcel.event_of[task_id] for task_id in refused if task_id in parcel.event_of)
    event_counts.keep_event_counts(
        name, {event: EventCount(failed=times, error=str(error)) for event, times in lost.items()}
    )


def _log_lost(queue: str, ids: Sequence[str], error: Exception) -> None:
    named = ", ".join(ids[:MOST_IDS]) + (" …" if len(ids) > MOST_IDS else "")
    logger.error(
        "%d tasks for queue %s could not be sent after the commit (%s): %s",
        len(ids),
        queue,
        error,
        named,
        exc_info=error,
    )
