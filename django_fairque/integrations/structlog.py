"""Middleware that sends the bound variables of structlog (`structlog.contextvars`) with each task.

Without this middleware each task starts without bound variables, because workers run each task in a new context.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from structlog.contextvars import bound_contextvars, get_contextvars

from django_fairque.safely import get_logger, type_name
from django_fairque.tasks.context import current_task
from django_fairque.tasks.middleware import TaskMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.tasks.middleware import TaskRun, TaskSend

STRUCTLOG_HEADER = "structlog"
MAX_VARIABLES_BYTES = 4096
"""Maximum bytes of a task's variables as JSON."""
OWN_VARIABLES = ("task_id", "task_name", "parent_task_id")
"""Variables that this middleware binds in each run. Tasks that the run enqueues do not inherit these variables."""

logger = get_logger("django_fairque.tasks")


class StructlogContext(TaskMiddleware):
    """Sends the bound variables of structlog from the code that enqueues a task to each run of the task, and binds
    ``task_id``, ``task_name``, and ``parent_task_id`` if another task has enqueued it.

    Values of types that JSON lacks arrive as text. If all variables together take more than 4,096 bytes, the largest
    variables are left out, and a warning is logged.
    """

    async_capable = True

    @contextmanager
    def around_send(self, send: TaskSend) -> Iterator[None]:
        """Put the bound variables into a header of the tasks; ``send`` is the call that sends the tasks."""
        variables = {name: value for name, value in get_contextvars().items() if name not in OWN_VARIABLES}
        if parent := current_task().id:
            variables["parent_task_id"] = parent
        if variables:
            send.headers[STRUCTLOG_HEADER] = _encode(variables)
        yield

    @contextmanager
    def around_run(self, run: TaskRun) -> Iterator[None]:
        """Bind the variables in the run; ``run`` describes the run. For a batch, bind only variables that are equal in
        all its tasks.
        """
        variables = {**_decode(run.headers.get(STRUCTLOG_HEADER, "{}")), "task_name": run.name}
        if len(run.tasks) == 1:
            variables["task_id"] = run.task.id
        with bound_contextvars(**variables):
            yield


def _encode(variables: dict[str, Any]) -> str:
    texts = {name: _as_json(value) for name, value in variables.items()}
    while sum(len(name) + len(text) + 4 for name, text in texts.items()) > MAX_VARIABLES_BYTES:
        largest = max(texts, key=lambda name: len(texts[name]))
        logger.warning(
            "the variable %r of structlog is left out of a task: it takes %d bytes", largest, len(texts[largest])
        )
        del texts[largest]
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in texts.items()) + "}"


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except Exception:  # noqa: BLE001 - sending a task must not fail because a variable can't be written
        return json.dumps(f"<{type_name(value)}>")


def _decode(text: str) -> dict[str, Any]:
    """Return the variables in a header. Return none if the header was changed and is no longer valid."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
