"""Makes spans and metrics of OpenTelemetry for sending and running tasks. Their names follow OpenTelemetry's
conventions for messaging systems.

This module is used only if ``TRACING`` is on; otherwise the packages of OpenTelemetry may be missing. If no SDK is set
up, the spans and instruments of opentelemetry-api record no data.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from django_fairque import conf
from django_fairque.safely import get_message
from django_fairque.tasks.errors import Discard, Retry
from django_fairque.tasks.tracing import BAGGAGE_HEADER, current_trace, set_traces, trace_of_span

if TYPE_CHECKING:
    from opentelemetry import metrics
    from opentelemetry import trace as otel
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.model.trace_context import Trace

MAX_BAGGAGE_BYTES = 8192
"""Maximum bytes of a baggage header that every system must forward, according to the W3C's Baggage specification."""
SYSTEM = "fairque"
"""The name of the messaging system in the attributes of spans and metrics."""
DURATION_BOUNDARIES_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bucket boundaries of both histograms, as recommended by OpenTelemetry's conventions."""


class Operation(NamedTuple):
    """A measured operation: sending or running tasks. Names with ``earlier_`` are from version 1.24 of the
    conventions.
    """

    name: str
    type: str
    duration: str
    messages: str
    earlier_name: str
    earlier_duration: str
    earlier_messages: str


SEND = Operation(
    "enqueue",
    "send",
    "messaging.client.operation.duration",
    "messaging.client.sent.messages",
    "publish",
    "messaging.publish.duration",
    "messaging.publish.messages",
)
RUN = Operation(
    "run",
    "process",
    "messaging.process.duration",
    "messaging.client.consumed.messages",
    "deliver",
    "messaging.deliver.duration",
    "messaging.deliver.messages",
)


@cache
def has_earlier_names() -> bool:
    """Return whether names of version 1.24 of the conventions are recorded in addition. This is switched on with
    ``messaging/dup`` in ``OTEL_SEMCONV_STABILITY_OPT_IN``.

    Other values of this variable have no effect, because this package never used only the earlier names.
    """
    wanted = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")
    return "messaging/dup" in map(str.strip, wanted)


@cache
def _instruments(operation: Operation) -> tuple[list[metrics.Histogram], list[metrics.Counter]]:
    from opentelemetry import metrics

    meter = metrics.get_meter("django_fairque")
    durations, messages = [operation.duration], [operation.messages]
    if has_earlier_names():
        durations.append(operation.earlier_duration)
        messages.append(operation.earlier_messages)
    return (
        [
            meter.create_histogram(
                name,
                "s",
                f"Duration of the operation {operation.name}.",
                explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES_SECONDS,
            )
            for name in durations
        ],
        [meter.create_counter(name, "{message}", f"Tasks of the operation {operation.name}.") for name in messages],
    )


def record(operation: Operation, queue: str, task_names: Sequence[str], seconds: float, error: str | None) -> None:
    """Record the duration of one operation on a queue, and count each of its tasks.

    Args:
        operation: `SEND` or `RUN`.
        queue: the queue's name.
        task_names: the name of each task.
        seconds: the duration.
        error: the class of the error that ended the operation; None if there was no error.
    """
    durations, messages = _instruments(operation)
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation.name,
        **server_attributes(),
    }
    if error is not None:
        attributes["error.type"] = error
    counts = Counter(task_names)
    about_all = dict(attributes)
    if len(counts) == 1:
        about_all["fairque.task.name"] = task_names[0]
    if operation is SEND:  # the convention has only one type of operation for running a task
        about_all["messaging.operation.type"] = operation.type
    for duration in durations:
        duration.record(seconds, about_all)
    for name, count in counts.items():
        for counter in messages:
            counter.add(count, attributes | {"fairque.task.name": name})


@contextmanager
def measured_push(queue: str, tasks: Sequence[Task]) -> Iterator[None]:
    """Record the metrics of a push without a span. The span was opened earlier, when the tasks were enqueued in a
    transaction.
    """
    started, failure = perf_counter(), None
    try:
        yield
    except Exception as error:
        failure = type(error).__qualname__
        raise
    finally:
        record(SEND, queue, [task.name for task in tasks], perf_counter() - started, failure)


def server_attributes() -> dict[str, AttributeValue]:
    """Return the address attributes of the server, if the configuration names one host or socket."""
    config = conf.get_config().redis
    if endpoint := config.endpoint:
        return {"server.address": endpoint[0], "server.port": endpoint[1]}
    return {"server.address": config.socket_path} if config.socket_path else {}


def baggage_header() -> dict[str, str]:
    """Return OpenTelemetry's baggage as a header, if there is some and the project propagates it
    (``OTEL_PROPAGATORS``). Baggage beyond the limit that other systems must accept is dropped, as the W3C's Baggage
    specification permits.
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
    """Open a span and make it the current one inside a ``with`` block. An error in the block is recorded and raised
    again.

    ``on_end`` is called while the span is current, with its duration in seconds and the class of the error; None if
    there was no error.
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
        with suppress(Exception):  # reading attributes of the project's error may raise an error
            span.record_exception(error)
        span.set_attribute("error.type", failure)
        span.set_status(otel.Status(otel.StatusCode.ERROR, f"{failure}: {get_message(error)}"))
        raise
    finally:
        on_end(perf_counter() - started, failure)
        contexts.detach(token)
        span.end()


@contextmanager
def send_span(queue: str, tasks: Sequence[Task]) -> Iterator[None]:
    """Return a context manager with a span around sending. The tasks belong to this span."""
    from opentelemetry import context as contexts
    from opentelemetry import trace as otel

    attributes = _build_attributes(SEND, queue, [(task.name, task.user_id, task.task_id) for task in tasks])
    here, trace = contexts.get_current(), current_trace()
    if trace.parent and not otel.get_current_span(here).get_span_context().is_valid:
        here = otel.set_span_in_context(_remote(trace), here)
    with _open_span(f"enqueue {queue}", otel.SpanKind.PRODUCER, here, attributes) as span:
        set_traces(tasks, trace_of_span(span) or trace)
        yield


def run_span(queue: str, task_name: str, leases: Sequence[Lease], baggage: str = "") -> AbstractContextManager[object]:
    """Return a context manager with a span around running, which continues the task's trace. The tasks of a batch have
    several traces, so a batch begins a new trace with links to these. ``baggage`` is the header of the task, or of all
    tasks of the batch.
    """
    from opentelemetry import propagate
    from opentelemetry import trace as otel
    from opentelemetry.context import Context

    first = leases[0]
    attributes = _build_attributes(RUN, queue, [(task_name, lease.user_id, lease.task_id) for lease in leases])
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
    on_end = partial(record, RUN, queue, [task_name] * len(leases))
    return _open_span(f"run {queue}", otel.SpanKind.CONSUMER, parent, attributes, links, on_end)


def _build_attributes(
    operation: Operation, queue: str, tasks: Sequence[tuple[str, str, str]]
) -> dict[str, AttributeValue]:
    """Return the attributes that all ``tasks`` have in common. Each task is given by its name, user and id."""
    about: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation.name,
        "messaging.operation.type": operation.type,
        **server_attributes(),
    }
    if has_earlier_names():
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
