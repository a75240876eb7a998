"""The errors around a task, in addition to the engine's errors.

::

    FairQueueError
    ├── TaskValidationError
    │   └── TaskUsageError          the task was declared or called in a way that can't work (also a TypeError)
    ├── TaskSignatureError          the signature of the task is missing or wrong
    ├── TaskNotRegisteredError      no task with this name was declared in this process
    ├── TaskNotFinishedError        the task has no result yet
    │   └── TaskWaitTimeoutError    the task did not end within the time given to wait() (also a TimeoutError)
    ├── TaskFailedError             the task failed for good
    ├── TaskCanceledError           the task was canceled, or discarded itself
    ├── TaskMemoryError             the process of the task used more memory than max_memory allows
    └── TaskTimeoutError            the task ran too long
        └── SoftTimeLimitExceeded   raised inside the task, so that it can clean up
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from django_fairque.engine.model.durations import check_integer, duration, moment
from django_fairque.engine.model.errors import FairQueueError, TaskValidationError, short
from django_fairque.safely import Interruption


class TaskUsageError(TaskValidationError, TypeError):
    """A task was declared or called in a way that can't work. The task was not sent."""


class TaskSignatureError(FairQueueError):
    """A task on the server has no valid signature. The worker does not run the task, which becomes a dead letter of
    type ``poisoned``.

    If producers use a key that the worker does not have, the worker gives the task back instead.
    """

    is_missing = False
    """Whether the task has no signature at all."""


class TaskNotRegisteredError(FairQueueError, LookupError):
    """No task with this name was declared in this process."""


class TaskNotFinishedError(FairQueueError):
    """The task has not ended, so there is no result yet."""


class TaskWaitTimeoutError(TaskNotFinishedError, TimeoutError):
    """The task had not ended when the time given to `TaskResult.wait` was over. The task continues."""


class TaskFailedError(FairQueueError):
    """The task ``task_id`` failed for good: ``error`` is the text of its last error.

    The original exception stays in the worker, because a class that data from the server names is never created here.
    """

    def __init__(self, task_id: str, error: str) -> None:
        super().__init__(f"task {task_id!r} failed: {error}")
        self.task_id = task_id
        self.error = error

    def __reduce__(self) -> tuple[type[TaskFailedError], tuple[str, str]]:
        return type(self), (self.task_id, self.error)


class TaskMemoryError(FairQueueError):
    """The task's process was ended because it used more memory than ``max_memory`` allows."""


class TaskCanceledError(FairQueueError):
    """The task was canceled or discarded itself, so it has no result."""


class TaskTimeoutError(FairQueueError):
    """The task ran longer than its time limit. ``message`` is the text of the error, by default "the task ran longer than its
    time limit".
    """

    def __init__(self, message: str = "the task ran longer than its time limit") -> None:
        super().__init__(message)


class SoftTimeLimitExceeded(TaskTimeoutError, Interruption):  # noqa: N818 - the name that users of task queues know
    """Raised inside a task whose time is over: clean up and return or raise. The hard limit follows after
    ``hard_timeout_grace`` seconds.
    """


class RetryOptions(TypedDict, total=False):
    """The limits of a `Retry`."""

    counts: bool
    max: int | None
    deadline: float | timedelta | datetime | None


class Retry(Exception):  # noqa: N818 - an instruction, not an error
    """Raise this in a task to run the task again in ``delay`` seconds (or a timedelta).

    ``reason`` is a text for the task's history, empty by default. Without a delay the task waits as long as after an
    error.

    - ``counts``: whether this uses up one of the task's retries, as an error does; False by default. If no retry is
      left, the task fails.
    - ``max``: how many times in total the task may raise a `Retry` with ``max``; after that the task fails. None (the
      default) for no limit.
    - ``deadline``: seconds (or a timedelta) after the task was enqueued, or an aware datetime. If the next attempt
      would start later, the task fails. None (the default) for no deadline.

    In any case, a task with ``expires`` becomes a dead letter of type ``expired`` if its next attempt would start after
    the expiry. After ten retries in a row that do not count and have delays below 1 second, further retries wait 1
    second. After 1,000 such retries in a row the task becomes a dead letter.

    Raises `TaskUsageError` if ``delay`` is a text, and `TaskValidationError` if a limit is not valid.
    """

    def __init__(
        self,
        delay: float | timedelta | None = None,
        reason: str = "",
        *,
        counts: bool = False,
        max: int | None = None,  # noqa: A002 - the word that the field uses
        deadline: float | timedelta | datetime | None = None,
    ) -> None:
        super().__init__(delay, reason)
        if isinstance(delay, str):
            raise TaskUsageError(
                f"the delay of Retry must be a number of seconds or a timedelta, got the text {short(delay)}; pass a "
                f"reason by name: Retry(reason={short(delay)})"
            )
        self.delay = None if delay is None else duration(delay, "the delay of Retry")
        self.reason = _text(reason, "Retry")
        self.counts = bool(counts)
        self.max = None if max is None else check_integer(max, "the max of Retry", 0)
        self.deadline = _deadline(deadline)

    def __str__(self) -> str:
        return self.reason or "the task raised Retry"


def _deadline(given: float | timedelta | datetime | None) -> float | datetime | None:
    if given is None:
        return None
    if isinstance(given, datetime):
        moment(given, "the deadline of Retry")
        return given
    return duration(given, "the deadline of Retry")


class Discard(Exception):  # noqa: N818 - an instruction, not an error
    """Raise this in a task whose work is no longer wanted. The task ends as CANCELED, without a retry and without a
    dead letter.

    ``reason`` is a text for the task's history, empty by default.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = _text(reason, "Discard")

    def __str__(self) -> str:
        return self.reason or "the task discarded itself"


def _text(reason: object, what: str) -> str:
    if not isinstance(reason, str):
        raise TaskUsageError(f"the reason of {what} must be text, got {short(reason)}")
    return reason


class TaskRevoked(BaseException, Interruption):
    """Raised inside a task that no longer belongs to its worker, because the task was canceled, lost or given back.

    This class is not an `Exception`, so that ``except Exception`` in the task does not catch it.
    """


HINTS = {
    "delay": "use enqueue(…)",
    "delay_on_commit": "use enqueue(…), which waits for the commit of a transaction",
    "apply_async": "use enqueue(…), for a task with options using(delay=…, priority=…).enqueue(…)",
    "apply_async_on_commit": "use using(…).enqueue(…), which waits for the commit of a transaction",
    "apply": "call the task as a function, which runs it here",
    "set": "use using(…) of a step",
    "si": "use s(…): no result is put in front of the arguments",
    "retry": "raise Retry(delay=…) in the task",
    "map": "use enqueue_many([((argument,), {}), …])",
    "starmap": "use enqueue_many([(arguments, {}), …])",
    "request": "use the attributes of current_task()",
    "update_state": "use current_task().progress(done, total, text)",
    "AsyncResult": "use TaskResult(task_id)",
    "send": "use enqueue(…)",
    "send_with_options": "use using(…).enqueue(…)",
    "get": "use wait(timeout), which returns what the task returned; after a pipeline run[step].result()",
    "ready": "use state: it is finished, failed or canceled when the task has ended",
    "successful": 'use state == "finished"',
    "failed": 'use state == "failed"',
    "status": "use state",
    "revoke": "use cancel()",
    "traceback": "use errors: the attempts that failed, with their tracebacks",
    "children": "use the result of a pipeline: run.results",
    "task_id": "use id",
    "aget": "use await_(timeout)",
}
"""Hints for attributes that tasks, pipelines, results and requests have in other queues."""


class NamesReplacements:
    """A class whose error about an unknown attribute contains the name to use instead."""

    __slots__ = ()
    if not TYPE_CHECKING:  # for type checkers, because otherwise they would accept any attribute name

        def __getattr__(self, name: str) -> Any:
            hint = f"; {HINTS[name]}" if name in HINTS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)
