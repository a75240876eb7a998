"""Why a task is stopped from outside. In a thread the exception tells; a `CancelledError` does not, so the worker says it."""

from __future__ import annotations

from contextvars import ContextVar


class TaskRevoked(BaseException):
    """Raised inside a task that is its worker's no longer: it was canceled or lost, or is given back.

    Not an `Exception`: the task's own handlers let it pass.
    """


class Stop:
    """What a worker says of one coroutine: with what it has stopped it, None as long as it has not."""

    def __init__(self, kind: type[BaseException] | None = None) -> None:
        self.kind = kind


stopped: ContextVar[Stop] = ContextVar("fairque_stopped", default=Stop(TaskRevoked))  # noqa: B039 - it is never changed
"""Of the coroutine that runs here. Where no worker says anything, whoever cancels it has given it up."""
