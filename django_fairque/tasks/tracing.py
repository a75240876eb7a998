"""The trace that running code belongs to, in the form in which tasks carry it.

Spans and metrics are OpenTelemetry's (`django_fairque.integrations.opentelemetry`), and are made only with ``TRACING``.
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
