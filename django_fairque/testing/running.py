"""Running a captured task in the test's own thread, with the context that a worker would give it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import describe
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.tasks import registry
from django_fairque.tasks.batches import by_item
from django_fairque.tasks.context import RunningTask, running
from django_fairque.tasks.control import Discard, Retry
from django_fairque.tasks.execution import limit_of
from django_fairque.tasks.queues import get_config
from django_fairque.tasks.run import Run
from django_fairque.tasks.services import Services
from django_fairque.tasks.tracing import around_running

from .values import Values, as_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.tasks.definition import AnyDefinition

    from .capture import Capture
    from .captured import Captured


@dataclass(frozen=True)
class CapturedServices(Services):
    """What a captured task asks of its worker, answered by the capture."""

    capture: Any = None
    captured: Any = None

    def parent_results(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002 - there is only this one
        found: dict[str, Any] = self.capture.results_of(self.captured.task.depends_on)
        return found

    def xcom(self, namespace: str) -> Any:
        return Values(self.capture.xcom.setdefault(namespace, {}), namespace, self.config.max_payload_bytes)


def run_captured(capture: Capture, together: Sequence[Captured], *, raise_errors: bool) -> None:
    """Call the function once, for one task or for several of a batch task; the first error of theirs is raised."""
    definition = registry.find(together[0].name)
    if definition is None:
        raise registry.not_registered(together[0].name)
    runs = [_run_of(capture, captured, definition) for captured in together]
    said = _called(together, runs)
    for captured, run, value in zip(together, runs, said, strict=True):
        _end_task(captured, run, value)
    errors = [captured.error for captured in together if captured.state is TaskState.FAILED]
    if raise_errors and errors and errors[0] is not None:
        raise errors[0]


def _run_of(capture: Capture, captured: Captured, definition: AnyDefinition) -> Run:
    def progress(_: Lease, current: float, total: float, message: str) -> None:
        captured.progress = (current, total, message)

    config = get_config()
    services = CapturedServices(
        captured.queue,
        config.queue_config(captured.queue),
        progress,
        tracing=config.tracing,
        capture=capture,
        captured=captured,
    )
    limit = limit_of(captured.task.timeout, definition, services)
    return Run(lease_of(captured), definition, services, captured.args, captured.kwargs, limit)


def _called(together: Sequence[Captured], runs: Sequence[Run]) -> Sequence[Any]:
    """What the function says of each: a result, or an exception."""
    definition, contexts = runs[0].definition, tuple(RunningTask(run.lease, run.services, run.timeout) for run in runs)
    function = async_to_sync(definition.function) if definition.is_async else definition.function
    for captured, run in zip(together, runs, strict=True):
        captured.worker = run.lease.worker
        captured.become(TaskState.STARTED)
    token = running.set(contexts[0])
    try:
        with around_running(runs):
            if not definition.options.batch:
                return [function(*runs[0].args, **runs[0].kwargs)]
            contexts[0].lead(contexts)
            return by_item(function([run.args[0] for run in runs]), len(runs))
    except Exception as error:  # noqa: BLE001 - whatever a task raises is its failure
        return [error] * len(runs)
    finally:
        running.reset(token)
        for context in contexts:
            context.flush()


def _end_task(captured: Captured, run: Run, said: Any) -> None:
    if captured.state is not TaskState.STARTED:
        return  # canceled while it ran: its outcome does not count
    said = _kept_outcome(run, said)
    if not isinstance(said, BaseException):
        captured.result = said
        captured.become(TaskState.FINISHED)
        return
    kind = "failed"
    if isinstance(said, Retry):
        captured.become(TaskState.SCHEDULED)
    elif isinstance(said, Discard):
        captured.become(TaskState.CANCELED)
        kind = "discarded"
    else:
        captured.become(TaskState.FAILED)
        captured.error = said
    text, trace = (part.decode() for part in describe(said if captured.error is said else str(said)))
    captured.attempts.append(Attempt(time.time(), kind, run.lease.worker, text, trace))


def _kept_outcome(run: Run, said: Any) -> Any:
    """A result as the queue would keep it, or the error with which a worker refuses it; an exception as it is."""
    if isinstance(said, BaseException):
        return said
    try:
        return as_kept(said, limit=run.services.config.max_payload_bytes, what="result")
    except TaskSerializationError as error:
        return error.with_traceback(None)


def lease_of(captured: Captured) -> Lease:
    """A lease as a worker would hold it."""
    task, now = captured.task, time.time()
    texts = [
        *(task.task_id, 1, 1, to_us(now + 60), task.payload_bytes, task.user_id, task.name, int(task.priority)),
        *(to_us(task.created_at), to_us(task.created_at), 0, task.max_retries),
        *(
            "" if task.timeout is None else to_us(task.timeout),
            "",
            "",
            to_us(now + 3600),
            task.run_id,
            task.trace.stored(),
            "",
        ),
    ]
    values = [each if isinstance(each, bytes) else str(each).encode() for each in texts]
    return Lease(values, "test", now)
