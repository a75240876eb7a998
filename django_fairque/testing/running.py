"""Running a captured task in the test's own thread, with the context that a worker would give it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from django_fairque.engine.lease import Lease
from django_fairque.engine.records import TaskState
from django_fairque.engine.units import to_us
from django_fairque.engine.xcom import ABSENT
from django_fairque.tasks import registry
from django_fairque.tasks.context import RunningTask, running
from django_fairque.tasks.control import Discard, Retry
from django_fairque.tasks.queues import get_config
from django_fairque.tasks.run import Run
from django_fairque.tasks.services import Services
from django_fairque.tasks.tracing import around_running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .capture import Capture, Captured


class Values:
    """`XCom` of a captured run."""

    def __init__(self, values: dict[str, Any], namespace: str) -> None:
        self._values, self.namespace = values, namespace

    def push(self, key: str, value: Any, *, ttl: float | None = None) -> None:  # noqa: ARG002 - as XCom's
        self._values[key] = value

    def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None) -> None:  # noqa: ARG002
        self._values.update(values)

    def pull(self, key: str, default: Any = ABSENT) -> Any:
        if key in self._values or default is ABSENT:
            return self._values[key]
        return default

    def items(self) -> dict[str, Any]:
        return dict(sorted(self._values.items()))

    def keys(self) -> list[str]:
        return sorted(self._values)


@dataclass(frozen=True)
class CapturedServices(Services):
    """What a captured task asks of its worker, answered by the capture."""

    capture: Any = None
    captured: Any = None

    def parent_results(self, task_id: str) -> dict[str, Any]:  # noqa: ARG002 - there is only this one
        found: dict[str, Any] = self.capture.results_of(self.captured.task.depends_on)
        return found

    def xcom(self, namespace: str) -> Any:
        return Values(self.capture.xcom.setdefault(namespace, {}), namespace)


def run_captured(capture: Capture, captured: Captured, *, raise_errors: bool) -> None:
    definition = registry.find(captured.name)
    if definition is None:
        raise registry.not_registered(captured.name)
    config = get_config().queue_config(captured.queue)

    def progress(_: Lease, current: float, total: float, message: str) -> None:
        captured.progress = (current, total, message)

    services = CapturedServices(
        captured.queue, config, progress, tracing=get_config().tracing, capture=capture, captured=captured
    )
    timeout = captured.task.timeout or definition.options.timeout
    run = Run(lease_of(captured), definition, services, captured.args, captured.kwargs, timeout)
    context = RunningTask(run.lease, services, timeout)
    token = running.set(context)
    captured.state = TaskState.STARTED
    try:
        function = async_to_sync(definition.function) if definition.is_async else definition.function
        with around_running([run]):
            if definition.options.batch:
                context.lead((context,))
                captured.result = _of_batch(function(captured.args))
            else:
                captured.result = function(*captured.args, **captured.kwargs)
        captured.state = TaskState.FINISHED
    except Retry:
        captured.state = TaskState.SCHEDULED
    except Discard:
        captured.state = TaskState.CANCELED
    except Exception as error:
        captured.state, captured.error = TaskState.FAILED, error
        if raise_errors:
            raise
    finally:
        running.reset(token)
        context.flush()


def _of_batch(returned: Any) -> Any:
    outcomes = getattr(returned, "outcomes", returned)
    return outcomes[0] if isinstance(outcomes, list) and outcomes else None


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
        ),
    ]
    values = [each if isinstance(each, bytes) else str(each).encode() for each in texts]
    return Lease(values, "test", now)
