"""Spans of OpenTelemetry around sending and running tasks, as its conventions for messaging name them.

Imported only where ``TRACING`` is on. Where no SDK is set up, opentelemetry-api makes spans that record nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from opentelemetry import context as contexts
from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from .control import Discard, Retry
from .tracing import current_trace, put_in, trace_of_span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from opentelemetry.util.types import AttributeValue

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.model.trace_context import Trace

    from .run import Run

SYSTEM = "fairque"


@cache
def _tracer() -> otel.Tracer:
    return otel.get_tracer("django_fairque")


class _Block:
    """A span that is open, and the current one, for a block. What is raised there is recorded and goes on."""

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        parent: Context,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[otel.Link] = (),
    ) -> None:
        self._name, self._kind, self._parent = name, kind, parent
        self._attributes, self._links = attributes, links

    def __enter__(self) -> None:
        self.span = _tracer().start_span(self._name, self._parent, self._kind, self._attributes, self._links)
        self._token = contexts.attach(otel.set_span_in_context(self.span, self._parent))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        contexts.detach(self._token)
        if isinstance(error, (Retry, Discard)):
            self.span.set_attribute("fairque.task.asked_for", type(error).__name__.lower())
        elif error is not None:
            self.span.record_exception(error)
            self.span.set_attribute("error.type", type(error).__qualname__)
            self.span.set_status(Status(StatusCode.ERROR, f"{type(error).__qualname__}: {error}"))
        self.span.end()


class Sending(_Block):
    """The tasks carry this span's place in the trace."""

    def __init__(self, queue: str, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        names = {task.name for task in tasks}
        attributes = _about(queue, "enqueue", "send", names, {task.user_id for task in tasks})
        if len(tasks) == 1:
            attributes["messaging.message.id"] = tasks[0].task_id
        else:
            attributes["messaging.batch.message_count"] = len(tasks)
        here, trace = contexts.get_current(), current_trace()
        if trace.parent and not otel.get_current_span(here).get_span_context().is_valid:
            here = otel.set_span_in_context(_remote(trace), here)
        super().__init__(f"enqueue {queue}", SpanKind.PRODUCER, here, attributes)

    def __enter__(self) -> None:
        trace = current_trace()
        super().__enter__()
        put_in(self._tasks, trace_of_span(self.span) or trace)


class Running(_Block):
    """A run continues its task's trace; a batch, which belongs to many, begins one with links to them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first, queue = runs[0].lease, runs[0].services.queue
        leases = [run.lease for run in runs]
        attributes = _about(queue, "run", "process", {runs[0].definition.name}, {lease.user_id for lease in leases})
        parent, links = Context(), []
        if len(leases) == 1:
            attributes["messaging.message.id"] = first.task_id
            attributes["fairque.task.attempt"] = first.retry_count + 1
            if first.trace.parent:
                parent = otel.set_span_in_context(_remote(first.trace), parent)
        else:
            attributes["messaging.batch.message_count"] = len(leases)
            links = [
                otel.Link(_remote(lease.trace).get_span_context(), {"messaging.message.id": lease.task_id})
                for lease in leases
                if lease.trace.parent
            ]
        super().__init__(f"run {queue}", SpanKind.CONSUMER, parent, attributes, links)


def _about(queue: str, name: str, kind: str, tasks: set[str], users: set[str]) -> dict[str, AttributeValue]:
    about: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if len(tasks) == 1:
        about["fairque.task.name"] = next(iter(tasks))
    if len(users) == 1:
        about["fairque.user.id"] = next(iter(users))
    return about


def _remote(trace: Trace) -> otel.NonRecordingSpan:
    return otel.NonRecordingSpan(
        SpanContext(
            int(trace.id, 16),
            int(trace.span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(trace.flags),
            trace_state=TraceState.from_header([trace.state]) if trace.state else None,
        )
    )
