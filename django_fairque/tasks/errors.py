"""What can go wrong around a task, beside the engine's own errors.

::

    FairQueueError
    ├── TaskValidationError
    │   └── TaskUsageError          declared or called in a way that can't work (a TypeError as well)
    ├── TaskSignatureError          the application did not make the task, as far as its signature tells
    ├── TaskNotRegisteredError      no task of that name was declared in this process
    ├── TaskNotFinishedError        there is no result yet
    │   └── TaskWaitTimeoutError    nor was there one in the time given (a TimeoutError as well)
    ├── TaskFailedError             it failed for good
    ├── TaskCanceledError           it was canceled, or discarded itself
    ├── TaskMemoryError             its process used more memory than its max_memory allows
    └── TaskTimeoutError            it ran too long
        └── SoftTimeLimitExceeded   raised inside the task, so that it can clean up
"""

from __future__ import annotations

from django_fairque.engine.model.errors import FairQueueError, TaskValidationError


class TaskUsageError(TaskValidationError, TypeError):
    """A task was declared or called in a way that can't work; nothing was sent."""


class TaskSignatureError(FairQueueError):
    """A task on the server has no valid signature: it is not run, and becomes a dead letter of type ``poisoned``."""


class TaskNotRegisteredError(FairQueueError, LookupError):
    """No task of that name was declared in this process."""


class TaskNotFinishedError(FairQueueError):
    """The task has not ended, so there is no result yet."""


class TaskWaitTimeoutError(TaskNotFinishedError, TimeoutError):
    """The task had not ended when the time given to `TaskResult.wait` was over. It goes on."""


class TaskFailedError(FairQueueError):
    """The task failed for good: ``error`` is the text of its last error.

    The exception itself stays in the worker: a class named by data from a server is never made here.
    """

    def __init__(self, task_id: str, error: str) -> None:
        super().__init__(f"task {task_id!r} failed: {error}")
        self.task_id = task_id
        self.error = error

    def __reduce__(self) -> tuple[type[TaskFailedError], tuple[str, str]]:
        return type(self), (self.task_id, self.error)


class TaskMemoryError(FairQueueError):
    """The task's process used more memory than ``max_memory`` allows, and was ended."""


class TaskCanceledError(FairQueueError):
    """The task was canceled, or discarded itself: there will be no result."""


class TaskTimeoutError(FairQueueError):
    """The task ran longer than its time limit."""

    def __init__(self, message: str = "the task ran longer than its time limit") -> None:
        super().__init__(message)


class SoftTimeLimitExceeded(TaskTimeoutError):  # noqa: N818 - the name that users of task queues know
    """Raised inside a task whose time is over: clean up and return or raise. The hard limit follows."""
