"""Handing a parcel to its queue after the commit, and what there is to do when that fails."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from django_fairque.engine.errors import BacklogFullError
from django_fairque.engine.records import EventCount, PushResult

from . import event_counts, lifecycle
from .queues import get_queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.models import Task

    from .results import TaskResult
    from .waiting import Parcel

MOST_IDS = 100
"""Ids named in a log line."""

logger = logging.getLogger("django_fairque.tasks")


def push(name: str, parcel: Parcel) -> Exception | None:
    """Push after a commit; the error if something that was enqueued by hand could not be sent.

    What was refused is logged: its ids are known to callers, and it is nowhere else now. What a model event asked for
    is counted too; it is no error of the one who saved something.
    """
    if not parcel.tasks and not parcel.counts:
        return None
    tasks = list(parcel.tasks.values())
    counts = _with_untold(name, parcel.counts)
    try:
        answers = _pushed(name, tasks, counts)
        failure, refused = None, []
    except BacklogFullError as error:
        answers = [answer for answer in error.results if isinstance(answer, PushResult)]
        failure, refused = error, list(error.refused)
    except Exception as error:  # noqa: BLE001 - logged here, raised after the other queues' tasks were sent
        event_counts.keep(name, counts)
        answers, failure, refused = [], error, [task.task_id for task in tasks]  # type: ignore[assignment]
    if failure is not None:
        _log_lost(name, refused, failure)
        _count_lost(name, parcel, refused, failure)
    if answers:
        _tell(parcel.tasks, answers)
        lifecycle.pushed(name, tasks, answers)
    return failure if any(task_id not in parcel.event_of for task_id in refused) else None


def _pushed(name: str, tasks: Sequence[Task], counts: Mapping[str, EventCount]) -> list[PushResult]:
    queue = get_queue(name)
    if not counts:
        return queue.push_batch(tasks)
    size = queue.config.pipeline_batch_size
    if len(tasks) > size or any(task.depends_on or task.run_id for task in tasks):
        answers = queue.push_batch(tasks)
        queue.deliver([], counts)
        return answers
    answers = queue.deliver(tasks, counts)
    if refused := [answer.task_id for answer in answers if not answer.is_known]:
        raise BacklogFullError(
            f"{len(refused)} of {len(answers)} tasks were refused because their user's backlog is full (queue {name!r})",
            refused=refused,
            results=answers,
        )
    return answers


def relay(database: str, parcels: Mapping[str, Parcel]) -> None:
    """Relay what the transaction has written into its outbox. What can't be relayed now stays there for the workers."""
    from django_fairque.outbox.relay import relay as relay_rows

    users = {task.user_id for parcel in parcels.values() for task in parcel.tasks.values()}
    counts = {name: told for name, parcel in parcels.items() if (told := _with_untold(name, parcel.counts))}
    try:
        relayed = relay_rows(database, users, counts)
    except Exception:
        for name, kept in counts.items():
            event_counts.keep(name, kept)
        logger.exception("the outbox of database %r could not be relayed after a commit; a worker will do it", database)
        return
    for name, untold in relayed.uncounted.items():
        event_counts.keep(name, untold)
    for name, tasks, answers in relayed.pushed:
        mine = parcels[name].tasks if name in parcels else {}
        by_id = {answer_task.task_id: answer for answer_task, answer in zip(tasks, answers, strict=True)}
        for result in list(mine):
            if result.id in by_id:
                result.sent_as(by_id[result.id].task_id)
        lifecycle.pushed(name, tasks, answers)
    if relayed.error is not None:
        logger.warning(
            "tasks stay in the outbox of database %r until a worker relays them: %s", database, relayed.error
        )


def _with_untold(name: str, counts: Mapping[str, EventCount]) -> dict[str, EventCount]:
    """The counts of this commit and what was not told before; nothing if no event fired now."""
    if not counts:
        return {}
    told = event_counts.taken(name)
    for event, count in counts.items():
        told.setdefault(event, EventCount()).add(count)
    return told


def _tell(results: Mapping[TaskResult, Task], answers: Sequence[PushResult]) -> None:
    for result, answer in zip(results, answers, strict=True):
        if answer.is_known:
            result.sent_as(answer.task_id)


def _count_lost(name: str, parcel: Parcel, refused: Sequence[str], error: Exception) -> None:
    lost = Counter(parcel.event_of[task_id] for task_id in refused if task_id in parcel.event_of)
    event_counts.keep(name, {event: EventCount(failed=times, error=str(error)) for event, times in lost.items()})


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
