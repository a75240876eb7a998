"""Hooks: functions of integrations that the core calls.

An integration registers itself when Django starts (`django_fairque.integrations.register`). Without it, its hook is empty and the
core runs as if the feature was switched off.
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
    """Spans and metrics around sending and running tasks. A module can be one."""

    def send_span(self, queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
        """Open a span around sending these tasks, and let them carry it."""

    def measured_push(self, queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
        """Measure the push of tasks whose span was opened when they were enqueued."""

    def run_span(
        self, queue: str, task_name: str, leases: Sequence[Lease], baggage: str
    ) -> AbstractContextManager[object]:
        """Open a span around one run; ``baggage`` is the header that came with the task."""

    def baggage_header(self) -> dict[str, str]:
        """Return the headers to send with tasks."""


class AlertSender(Protocol):
    """Sends messages about incidents of the queues to a receiver."""

    def put(self, changes: Iterable[IncidentChange]) -> None:
        """Send these messages soon. Returns at once, from any thread."""

    def end(self, seconds: float) -> None:
        """Send the remaining messages, for at most ``seconds``."""


tracing: Tracing | None = None
"""Used if ``TRACING`` is on."""
alert_senders: list[Callable[[], AlertSender]] = []
"""Functions that make a sender for the process of a worker."""


def around_push(queue: str, tasks: Sequence[Task]) -> AbstractContextManager[object]:
    """Measure the push of tasks that were enqueued before, in a transaction."""
    if tracing is None or not tasks or not conf.get_config().tracing:
        return nullcontext()
    return tracing.measured_push(queue, tasks)
