"""Decides what happens after an attempt that raised an error: whether the task is tried again, and after how many
seconds.

`decide_next_step` makes the decision. The worker sends the decision to the server (`execution.failed_outcome`), which
checks that retries are left (`engine/lua/commands/settle.lua`). Code around a task's function (the backend for
`django.tasks`, Sentry) makes the same decision before the worker does. Only `plan_retry` calls code of the project: a
backoff function may still end the task.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from enum import Enum
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import duration, moment, retry_delay, to_us
from django_fairque.safely import get_logger, get_traceback, is_a

from .errors import Discard, Retry, TaskRevoked, TaskTimeoutError

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.options import QueueConfig

    from .definition import AnyDefinition

logger = get_logger("django_fairque.tasks")


class NextStep(Enum):
    """The next step after an attempt that raised an error."""

    RETRY = "retry"
    """The attempt failed, and uses up one of the task's retries."""
    POSTPONE = "postpone"
    """The task raised a `Retry` that does not use up one of its retries."""
    FAIL = "fail"
    """The task failed for good."""
    CANCEL = "cancel"
    """The task discarded itself."""
    GIVE_BACK = "give back"
    """The task no longer belongs to its worker, or the worker ends."""


class Stop:
    """The exception with which a worker stopped a coroutine. ``kind`` is the class of the exception; None while the
    coroutine has not been stopped.
    """

    def __init__(self, kind: type[BaseException] | None = None) -> None:
        self.kind = kind


stopped: ContextVar[Stop] = ContextVar("fairque_stopped", default=Stop(TaskRevoked))  # noqa: B039 - it is never changed
"""The `Stop` of the coroutine that runs in this context. Outside of a worker, a canceled coroutine counts as given
back."""


def replace_cancellation(error: BaseException) -> BaseException:
    """If ``error`` is the cancellation of the running coroutine by its worker, return the exception with which the
    worker stopped it. Otherwise return ``error``.
    """
    kind = stopped.get().kind if is_a(error, asyncio.CancelledError) else None
    return error if kind is None else kind().with_traceback(get_traceback(error))


def decide_next_step(error: BaseException, definition: AnyDefinition | None, retries_left: int) -> NextStep:
    """Return the next step after ``error``. Without a ``definition`` every error leads to another attempt.

    A task that was interrupted at its time limit always gets another attempt, because the error was not raised by the
    task.
    """
    if is_a(error, Retry):
        if not _uses_up_retry(error):
            return NextStep.POSTPONE
    elif is_a(error, Discard):
        return NextStep.CANCEL
    elif is_a(error, TaskRevoked):
        return NextStep.GIVE_BACK
    elif definition is not None and not is_a(error, (*definition.options.retry_on, TaskTimeoutError)):
        return NextStep.FAIL
    return NextStep.RETRY if retries_left > 0 else NextStep.FAIL


def _uses_up_retry(retry: Retry) -> bool:
    try:
        return bool(retry.counts)
    except BaseException:  # noqa: BLE001 - attributes of a subclass may raise
        return False


def plan_retry(
    error: BaseException, lease: Lease, definition: AnyDefinition, config: QueueConfig
) -> tuple[float | None, str]:
    """Return the seconds until the next attempt, or None if the backoff function ends the task; and the limits of a
    `Retry` in the form that an outcome has.
    """
    backoff, limits = definition.options.backoff, ""
    delay: float | None = None
    if is_a(error, Retry):
        try:
            delay, limits = _plan_requested_retry(error, lease)
        except BaseException:
            logger.exception("the options of a Retry can't be used; using the default delay")
    elif callable(backoff):
        try:
            known: Any = lease if getattr(backoff, "takes_lease", False) else lease.retry_count
            given = backoff(known, error)
            return None if given is None else duration(given, "the delay that backoff returns"), ""
        except BaseException:
            logger.exception("the backoff function of task %s failed; using the default delay", definition.name)
    if delay is None:
        own: Any = {} if callable(backoff) or backoff is None else backoff
        delay = retry_delay(lease.retry_count, **{**config.retry_delay_options, **own})
    return delay, limits


def _plan_requested_retry(retry: Retry, lease: Lease) -> tuple[float | None, str]:
    delay = None if retry.delay is None else duration(retry.delay, "the delay of Retry")
    most, last = retry.max, retry.deadline
    if most is None and last is None:
        return delay, ""
    end = lease.task.created_at + last if isinstance(last, float) else moment(last, "the deadline of Retry")
    return delay, f":{'' if most is None else int(most)}:{'' if end is None else to_us(end)}"
