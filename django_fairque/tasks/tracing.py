"""The trace that running code belongs to, and OpenTelemetry's spans around sending and running tasks.

The spans have the names and attributes of OpenTelemetry's conventions for messaging, and so have the metrics that are recorded
with them. Only code that needs its packages imports them: without ``TRACING`` they may be missing. Where no SDK is set up,
opentelemetry-api makes spans that record nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING

from django_fairque import otel_metrics
from django_fairque.engine.model.trace_context import NO_TRACE, Trace, read_state
from django_fairque.safely import message_of

from .context import ScopedValue, TaskContext
from .errors import Discard, Retry

if TYPE_CHECKING:
    from opentelemetry import trace as otel
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.task import Task


NO_SPAN = nullcontext()
BAGGAGE_HEADER = "baggage"
MAX_BAGGAGE_BYTES = 8192
"""As many as the W3C's Baggage lets everybody expect to be passed on."""


def _trace_of(task: TaskContext) -> Trace:
    """The running task's; of a batch only if all its items belong to one."""
    if not task.batch:
        return task.trace
    traces = {item.trace for item in task.batch}
    return traces.pop() if len(traces) == 1 else NO_TRACE


_scoped_trace = ScopedValue("fairque_trace", _trace_of)


def in_trace(trace: Trace) -> AbstractContextManager[None]:
    """The code of the block belongs to this trace."""
    return _scoped_trace.hold(trace)


def current_trace() -> Trace:
    """OpenTelemetry's, if the project uses that and a span is open; else the request's, or the running task's."""
    if "opentelemetry.trace" in sys.modules:  # else nobody has opened a span
        from opentelemetry.trace import get_current_span

        if trace := trace_of_span(get_current_span()):
            return trace
    return _scoped_trace.get()


def trace_of_span(span: object) -> Trace | None:
    """A span of OpenTelemetry in the form in which it travels; None if it is none that counts."""
    context = span.get_span_context()  # type: ignore[attr-defined] # its package may be missing
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return Trace(parent, read_state(context.trace_state.to_header()))


def put_in(tasks: Sequence[Task], trace: Trace) -> None:
    if trace.parent:
        for task in tasks:
            task.traced(trace)


def baggage_header() -> dict[str, str]:
    """OpenTelemetry's baggage as the header in which it travels, if there is some and the project propagates it
    (``OTEL_PROPAGATORS``). More than others must accept is dropped, as the W3C's Baggage allows.
    """
    from opentelemetry import baggage, propagate

    if not baggage.get_all():
        return {}
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    text = carrier.get(BAGGAGE_HEADER, "")
    return {BAGGAGE_HEADER: text} if 0 < len(text) <= MAX_BAGGAGE_BYTES else {}


@cache
def _tracer() -> otel.Tracer:
    from opentelemetry import trace as otel

    return otel.get_tracer("django_fairque")


@contextmanager
def _open_span(
    name: str,
    kind: otel.SpanKind,
    parent: Context,
    attributes: Mapping[str, AttributeValue],
    links: Sequence[otel.Link] = (),
    on_end: Callable[[float, str | None], None] = lambda *_: None,
) -> Iterator[otel.Span]:
    """A span that is open, and the current one, for a block. What is raised there is recorded and goes on.

    ``on_end`` is called with its duration in seconds, and the class of the error, None for none, while the span is current.
    """
    from opentelemetry import context as contexts
    from opentelemetry import trace as otel

    started, failure = perf_counter(), None
    span = _tracer().start_span(name, parent, kind, attributes, links)
    token = contexts.attach(otel.set_span_in_context(span, parent))
    try:
        yield span
    except (Retry, Discard) as error:
        span.set_attribute("fairque.task.asked_for", type(error).__name__.lower())
        raise
    except BaseException as error:
        failure = type(error).__qualname__
        with suppress(Exception):  # attributes of the error may raise
            span.record_exception(error)
        span.set_attribute("error.type", failure)
        span.set_status(otel.Status(otel.StatusCode.ERROR, f"{failure}: {message_of(error)}"))
        raise
    finally:
        on_end(perf_counter() - started, failure)
        contexts.detach(token)
        span.end()


@contextmanager
def send_span(queue: str, tasks: Sequence[Task]) -> Iterator[None]:
    """The tasks carry this span's place in the trace."""
    from opentelemetry import context as contexts
    from opentelemetry import trace as otel

    attributes = _about(otel_metrics.SEND, queue, [(task.name, task.user_id, task.task_id) for task in tasks])
    here, trace = contexts.get_current(), current_trace()
    if trace.parent and not otel.get_current_span(here).get_span_context().is_valid:
        here = otel.set_span_in_context(_remote(trace), here)
    with _open_span(f"enqueue {queue}", otel.SpanKind.PRODUCER, here, attributes) as span:
        put_in(tasks, trace_of_span(span) or trace)
        yield


def run_span(queue: str, task_name: str, leases: Sequence[Lease], baggage: str = "") -> AbstractContextManager[object]:
    """A run continues its task's trace; a batch, which belongs to many, begins one with links to them. ``baggage`` is the header
    that came with the task, or with all tasks of the batch."""
    from opentelemetry import propagate
    from opentelemetry import trace as otel
    from opentelemetry.context import Context

    first = leases[0]
    attributes = _about(otel_metrics.RUN, queue, [(task_name, lease.user_id, lease.task_id) for lease in leases])
    parent, links = Context(), []
    if baggage:
        parent = propagate.extract({BAGGAGE_HEADER: baggage}, parent)
    if len(leases) == 1:
        attributes["fairque.task.attempt"] = first.retry_count + 1
        if first.trace.parent:
            parent = otel.set_span_in_context(_remote(first.trace), parent)
    else:
        links = [
            otel.Link(_remote(lease.trace).get_span_context(), {"messaging.message.id": lease.task_id})
            for lease in leases
            if lease.trace.parent
        ]
    record = partial(otel_metrics.record, otel_metrics.RUN, queue, [task_name] * len(leases))
    return _open_span(f"run {queue}", otel.SpanKind.CONSUMER, parent, attributes, links, record)


def _about(
    operation: otel_metrics.Operation, queue: str, tasks: Sequence[tuple[str, str, str]]
) -> dict[str, AttributeValue]:
    """What is the same for all ``tasks``, which are given by name, user and id."""
    about: dict[str, AttributeValue] = {
        "messaging.system": otel_metrics.SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type,
        **otel_metrics.server_attributes(),
    }
    if otel_metrics.has_earlier_names():
        about["messaging.operation"] = operation.earlier_name
    names, users = {name for name, _, _ in tasks}, {user for _, user, _ in tasks}
    if len(names) == 1:
        about["fairque.task.name"] = names.pop()
    if len(users) == 1:
        about["fairque.user.id"] = users.pop()
    if len(tasks) == 1:
        about["messaging.message.id"] = tasks[0][2]
    else:
        about["messaging.batch.message_count"] = len(tasks)
    return about


def _remote(trace: Trace) -> otel.NonRecordingSpan:
    from opentelemetry import trace as otel

    return otel.NonRecordingSpan(
        otel.SpanContext(
            int(trace.id, 16),
            int(trace.span_id, 16),
            is_remote=True,
            trace_flags=otel.TraceFlags(trace.flags),
            trace_state=otel.TraceState.from_header([trace.state]) if trace.state else None,
        )
    )
