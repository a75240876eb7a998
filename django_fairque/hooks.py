"""Hooks: functions of integrations that the core calls.

An integration registers itself when Django starts (`django_fairque.integrations.register`). If an integration is
missing, its hook is empty, and the core works as if the feature was switched off.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from django_fairque import conf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.statistics.incidents import IncidentChange


class Tracing(Protocol):
    """Spans and metrics around sending and running tasks. A module can implement this interface."""

    def send_span(self, queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
        """Open a span around sending these tasks, and add the span's trace to the tasks."""

    def measured_push(self, queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
        """Record metrics of a push. The span of its tasks was opened earlier, when the tasks were enqueued."""

    def run_span(
        self, queue: str, task_name: str, leases: Sequence[Lease], baggage: str
    ) -> AbstractContextManager[object]:
        """Open a span around one run; ``baggage`` is the header that was sent with the task."""

    def baggage_header(self) -> dict[str, str]:
        """Return the headers to send with tasks."""


class AlertSender(Protocol):
    """Sends messages about incidents of the queues to a receiver."""

    def put(self, changes: Iterable[IncidentChange]) -> None:
        """Queue these messages for sending. Returns at once; can be called from any thread."""

    def end(self, seconds: float) -> None:
        """Send the remaining messages within ``seconds``."""


tracing: Tracing | None = None
"""The tracing integration. Used only if ``TRACING`` is on."""
alert_senders: list[Callable[[], AlertSender]] = []
"""Functions that make an alert sender. Each worker process calls them."""


def around_push(queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
    """Return the context manager that measures the push of tasks that were enqueued earlier, in a transaction."""
    if tracing is None or not tasks or not conf.get_config().tracing:
        return nullcontext()
    return tracing.measured_push(queue, tasks)
