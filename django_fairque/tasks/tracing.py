"""Which trace the code belongs to that runs here, and its tasks with it. Spans of one's own are in `spans`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from django_fairque.engine.model.trace_context import NONE, Trace, read_state

from .ambient import Ambient
from .queues import get_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from django_fairque.engine.model.task import Task

    from .context import TaskContext
    from .run import Run

NO_SPAN = nullcontext()


def _trace_of(task: TaskContext) -> Trace:
    """The running task's; of a batch only if all its items belong to one."""
    traces = {item.trace for item in task.batch} or {task.trace}
    return traces.pop() if len(traces) == 1 else NONE


_scoped_trace = Ambient("fairque_trace", _trace_of)


def in_trace(trace: Trace) -> AbstractContextManager[None]:
    """The code of the block belongs to this trace."""
    return _scoped_trace.hold(trace)


def current_trace() -> Trace:
    """OpenTelemetry's, if the project uses that and a span is open; else the request's, or the running task's."""
    return _open_span() or _scoped_trace.get()


def _open_span() -> Trace | None:
    if "opentelemetry.trace" not in sys.modules:  # then nobody has opened a span
        return None
    from opentelemetry.trace import get_current_span

    return trace_of_span(get_current_span())


def trace_of_span(span: object) -> Trace | None:
    """A span of OpenTelemetry in the form in which it travels; None if it is none that counts."""
    context = span.get_span_context()  # type: ignore[attr-defined] # its package may be missing
    if not context.is_valid:
        return None
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return Trace(parent, read_state(context.trace_state.to_header()))


def around_sending(queue: str, tasks: Sequence[Task]) -> AbstractContextManager[None]:
    """Around sending tasks: they become part of the current trace, with a span for it where spans are on."""
    if get_config().tracing:
        from .spans import Sending

        return Sending(queue, tasks)
    put_in(tasks, current_trace())
    return NO_SPAN


def around_running(runs: Sequence[Run]) -> AbstractContextManager[None]:
    """Around the function of a task; ``runs`` are those of one call."""
    if runs[0].services.tracing:
        from .spans import Running

        return Running(runs)
    return NO_SPAN


def put_in(tasks: Sequence[Task], trace: Trace) -> None:
    if trace.parent:
        for task in tasks:
            task.traced(trace)
