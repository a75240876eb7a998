"""The current trace, in the form in which tasks carry it.

Spans and metrics of OpenTelemetry (`django_fairque.integrations.opentelemetry`) exist only if the setting ``TRACING``
is on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from django_fairque.engine.model.trace_context import NO_TRACE, Trace, read_state

from .context import ScopedValue, TaskContext

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task


NO_SPAN = nullcontext()
BAGGAGE_HEADER = "baggage"


def _get_running_trace(task: TaskContext) -> Trace:
    """Return the trace of the running task. For a batch, return a trace only if all its items have the same trace."""
    if not task.batch:
        return task.trace
    traces = {item.trace for item in task.batch}
    return traces.pop() if len(traces) == 1 else NO_TRACE


_scoped_trace = ScopedValue("fairque_trace", _get_running_trace)


def in_trace(trace: Trace) -> AbstractContextManager[None]:
    """Return a context manager for a ``with`` block. Code in the block belongs to the given trace."""
    return _scoped_trace.hold(trace)


def current_trace() -> Trace:
    """Return the current trace: the trace of OpenTelemetry's open span, or else the trace of the request or of the
    running task.
    """
    if "opentelemetry.trace" in sys.modules:  # if it is not imported, no span of OpenTelemetry can be open
        from opentelemetry.trace import get_current_span

        if trace := trace_of_span(get_current_span()):
            return trace
    return _scoped_trace.get()


def trace_of_span(span: object) -> Trace | None:
    """Return the trace that an OpenTelemetry span belongs to; None if the span is not valid."""
    context = span.get_span_context()  # type: ignore[attr-defined] # its package may be missing
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return Trace(parent, read_state(context.trace_state.to_header()))


def set_traces(tasks: Sequence[Task], trace: Trace) -> None:
    if trace.parent:
        for task in tasks:
            task.set_trace(trace)
