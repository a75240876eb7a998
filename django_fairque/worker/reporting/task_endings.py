"""`Ending`: what became of a task whose own worker can't tell, because its process was ended or nobody ran it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque import signals
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.worker.reporting.send_signal import send_signal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.alerts import Alert

ENDING_SIGNALS = {"dead": signals.task_dead, "retried": signals.task_retried}
"""By the server's word."""

FindTask = Callable[[str, str], "Task | None"]
"""The task of a queue (by name) with an id; None when it is not known any more."""


@dataclass(frozen=True)
class TaskEnding:
    """It is ``status`` (dead or retried) because of ``error``. ``took`` seconds; None: no attempt of it has failed."""

    queue: str
    task_id: str
    status: str
    error: str
    took: float | None = None
    delay: float | None = None


def ending_of_alert(alert: Alert) -> TaskEnding:
    return TaskEnding(alert.queue, alert.task_id, "dead", alert.reason)


def endings_of_outcomes(queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> Iterator[TaskEnding]:
    for outcome, status in zip(outcomes, statuses, strict=True):
        if status in ENDING_SIGNALS:
            error = outcome.body.decode("utf-8", "replace")
            yield TaskEnding(queue, outcome.lease.task_id, status, error, outcome.took, outcome.delay)


def has_ending_receivers() -> bool:
    return any(signal.receivers for signal in (signals.task_failed, *ENDING_SIGNALS.values()))


def send_ending_signals(ending: TaskEnding, find: FindTask) -> None:
    """Send the signals, with the task as it is now. One that was deleted meanwhile needs no word."""
    task = find(ending.queue, ending.task_id)
    if task is None:
        return
    about = {"task": task, "queue": ending.queue, "took": ending.took or 0.0, "error": ending.error}
    if ending.took is not None:
        send_signal(signals.task_failed, task.name, **about)
    extra = {"delay": ending.delay} if ending.status == "retried" else {}
    send_signal(ENDING_SIGNALS[ending.status], task.name, **about, **extra)


def task_finder(queues: Sequence[FairQueue]) -> FindTask:
    """Look in these queues."""
    by_name = {queue.name: queue.whole for queue in queues}

    def find(queue: str, task_id: str) -> Task | None:
        try:
            return by_name[queue].get_task(task_id)
        except TaskNotFoundError:
            return None

    return find
