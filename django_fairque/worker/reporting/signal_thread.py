"""Sends Django signals about tasks, from a thread. Alerts also go to the log, to a callable of the application, by e-mail, and to
the senders that integrations register.

`TaskEnding` describes the end of a task that its own worker can't report, because its process was killed or no worker ran the
task.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_fairque import hooks, signals
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.safely import is_a
from django_fairque.worker.common import isolation
from django_fairque.worker.common.log import log_ending, logger

if TYPE_CHECKING:
    from django.dispatch import Signal

    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.health import Alert
    from django_fairque.worker.common.options import WorkerOptions


def send_signal(signal: Signal, sender: str, **arguments: Any) -> None:
    """Send a signal; a receiver that fails is logged."""
    for receiver, answer in signal.send_robust(sender=sender, **arguments):
        if is_a(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)


@dataclass(frozen=True)
class TaskEnding:
    """The end of a task with ``status`` (dead or retried) because of ``error``. ``took`` is in seconds; None if no attempt has
    failed."""

    queue: str
    task_id: str
    status: str
    error: str
    took: float | None = None
    delay: float | None = None


def endings_of_outcomes(queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> Iterator[TaskEnding]:
    for outcome, status in zip(outcomes, statuses, strict=True):
        if status in ("dead", "retried"):
            error = outcome.body.decode("utf-8", "replace")
            yield TaskEnding(queue, outcome.lease.task_id, status, error, outcome.took, outcome.delay)


MAX_WAITING_SIGNALS = 10_000
MAX_ALERTS_PER_EMAIL = 50
"""Alerts named in one e-mail; the rest are counted."""

ALERT_SIGNALS: dict[str, Signal] = {
    "at_risk": signals.sla_at_risk,
    "violated": signals.sla_violated,
    "promoted": signals.task_promoted,
    "given_back": signals.task_given_back,
    "emptied": signals.data_lost,
    "went_back": signals.data_lost,
}
OUTCOME_SIGNALS: dict[str, tuple[Signal, ...]] = {
    "finished": (signals.task_finished,),
    "retried": (signals.task_failed, signals.task_retried),
    "dead": (signals.task_failed, signals.task_dead),
    "canceled": (signals.task_canceled,),
}
"""Signals by the status that the server returns for an outcome."""


class SignalThread:
    """Sends signals in a separate thread, because receivers may be slow. The thread begins with the first signal."""

    def __init__(self, options: WorkerOptions, queues: Sequence[FairQueue]) -> None:
        self._options = options
        self._queues = {queue.name: queue.parent_queue for queue in queues}
        self._waiting: deque[Callable[[], None]] = deque(maxlen=MAX_WAITING_SIGNALS)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._alert_senders = [make() for make in hooks.alert_senders]

    def announce(self, announcements: Sequence[Alert | TaskEnding]) -> None:
        """Announce alerts and endings of tasks. Can be called from any thread; returns at once."""
        alerts = [announcement for announcement in announcements if not isinstance(announcement, TaskEnding)]
        if alerts:
            for sender in self._alert_senders:
                sender.put([alert for alert in alerts if alert.kind != "died"])
            self._put([partial(report_alerts, alerts, self._options.alert_email)])
        if endings := [announcement for announcement in announcements if isinstance(announcement, TaskEnding)]:
            self._put(partial(self._report_ending, ending, is_logged=False) for ending in endings)
        if deaths := [alert for alert in alerts if alert.kind == "died" and _has_receivers("dead")]:
            endings = [TaskEnding(death.queue, death.task_id, "dead", death.reason) for death in deaths]
            self._put(partial(self._report_ending, ending, is_logged=True) for ending in endings)

    def _report_ending(self, ending: TaskEnding, *, is_logged: bool) -> None:
        """Log it, and send the signals, with the task as it is now. One that was deleted meanwhile needs no word."""
        try:
            task = self._queues[ending.queue].get_task(ending.task_id)
        except TaskNotFoundError:
            return
        if not is_logged:
            log_ending(task, ending.status, ending.error, ending.delay)
        about = {"task": task, "queue": ending.queue, "took": ending.took or 0.0, "error": ending.error}
        _send_task_signals(ending.status, task.name, about, ending.delay, has_failed=ending.took is not None)

    def send_outcome_signals(self, queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> None:
        """Send the signals of outcomes that have receivers."""
        if not _has_receivers(*OUTCOME_SIGNALS):
            return
        self._put(
            partial(send_signals_of_outcome, queue, outcome, status)
            for outcome, status in zip(outcomes, statuses, strict=True)
            if status in OUTCOME_SIGNALS
        )

    def send_worker_signal(self, signal: Signal) -> None:
        """Send the signal that the worker has started or stopped."""
        if signal.receivers:
            about = {"worker_id": self._options.worker_id, "queues": self._options.queues}
            self._put([partial(send_signal, signal, self._options.worker_id, **about)])

    def end(self, seconds: float) -> None:
        """Send the waiting signals within ``seconds``. Later signals are sent too, if the process lives long enough."""
        with self._changed:
            self._ended = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        for sender in self._alert_senders:
            sender.end(seconds)

    def _put(self, calls: Any) -> None:
        with self._changed:
            self._waiting.extend(calls)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fairque-signals", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._ended:
                        self._changed.wait()
                    some = list(self._waiting)
                    self._waiting.clear()
                    if not some:
                        self._thread = None
                        return
                for one in some:
                    call_safely("a piece of news", isolation.run_in_new_context, one)
                    isolation.clean_up_connections()
        finally:
            isolation.close_connections()


def _has_receivers(*statuses: str) -> bool:
    return any(signal.receivers for status in statuses for signal in OUTCOME_SIGNALS[status])


def send_signals_of_outcome(queue: str, outcome: Outcome, status: str) -> None:
    """The signals of one outcome that the server has taken."""
    about: dict[str, Any] = {"task": outcome.lease.task, "queue": queue, "took": outcome.took}
    if status != "finished":
        about["error"] = outcome.body.decode("utf-8", "replace")
    if status == "canceled":
        about["task_id"] = outcome.lease.task_id
    # A task that snoozed itself has not failed, unless that has ended it.
    has_failed = status == "dead" or not outcome.is_put_off
    _send_task_signals(status, outcome.lease.name, about, outcome.delay, has_failed=has_failed)


def _send_task_signals(status: str, name: str, about: dict[str, Any], delay: float | None, *, has_failed: bool) -> None:
    for signal in OUTCOME_SIGNALS[status]:
        if has_failed or signal is not signals.task_failed:
            extra = {"delay": delay} if signal is signals.task_retried else {}
            send_signal(signal, name, **about, **extra)


def report_alerts(alerts: Sequence[Alert], email: Sequence[str]) -> None:
    """Log the alerts, send their signals, and mail them. A step that fails is logged, and the others are done.

    Deaths are only logged: they have signals, which are sent for all other endings as well.
    """
    for alert in alerts:
        if alert.task_id:
            logger.warning("queue %s: %s", alert.queue, alert)
    alerts = [alert for alert in alerts if alert.kind != "died"]
    for alert in alerts:
        isolation.run_in_new_context(
            partial(send_signal, ALERT_SIGNALS[alert.kind], alert.name or alert.queue, alert=alert)
        )
    if email and alerts:
        call_safely(f"the e-mail to {', '.join(email)}", _send_email, alerts, email)


def call_safely(what: str, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except BaseException:  # noqa: BLE001 - it is the application's code, which may also raise SystemExit
        logger.exception("%s failed", what)


def _send_email(alerts: Sequence[Alert], recipients: Sequence[str]) -> None:
    from django.core.mail import send_mail

    queues = ", ".join(sorted({alert.queue for alert in alerts}))
    lines = [str(alert) for alert in alerts[:MAX_ALERTS_PER_EMAIL]]
    if len(alerts) > MAX_ALERTS_PER_EMAIL:
        lines.append(f"and {len(alerts) - MAX_ALERTS_PER_EMAIL} more")
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}{len(alerts)} alerts of queue {queues}"
    send_mail(subject, "\n".join(lines), None, list(recipients))
