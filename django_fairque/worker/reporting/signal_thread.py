"""A thread that sends Django signals about tasks. Alerts are also logged, with one line for many alerts. Changes of
incidents are logged, mailed, and passed to the senders that integrations register.

`TaskEnding` describes the end of a task that no worker process can report itself, because the task's process was killed
or no worker ran the task.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Union

from django.conf import settings

from django_fairque import hooks, signals
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.statistics.health import Alert
from django_fairque.engine.statistics.incidents import IncidentChange
from django_fairque.safely import is_a
from django_fairque.worker.common import isolation
from django_fairque.worker.common.log import log_ending, logger
from django_fairque.worker.reporting.incident_links import incident_url

if TYPE_CHECKING:
    from django.dispatch import Signal

    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerOptions


def send_signal(signal: Signal, sender: str, **arguments: Any) -> None:
    """Send a signal. An error in a receiver is logged."""
    for receiver, answer in signal.send_robust(sender=sender, **arguments):
        if is_a(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)


@dataclass(frozen=True)
class TaskEnding:
    """The end of a task with ``status`` (dead, retried, or canceled by an act on many tasks) because of ``error``. ``took`` is in
    seconds; None if no attempt has failed."""

    queue: str
    task_id: str
    status: str
    error: str
    took: float | None = None
    delay: float | None = None


Announcement = Union[Alert, IncidentChange, TaskEnding]  # noqa: UP007 - evaluated on 3.10 too


def endings_of_outcomes(queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> Iterator[TaskEnding]:
    for outcome, status in zip(outcomes, statuses, strict=True):
        if status in ("dead", "retried"):
            error = outcome.body.decode("utf-8", "replace")
            yield TaskEnding(queue, outcome.lease.task_id, status, error, outcome.took, outcome.delay)


MAX_WAITING_SIGNALS = 10_000
ALERT_LOG_SECONDS = 10.0
"""Minimum seconds between two log lines about alerts of tasks."""

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
"""The signals to send for an outcome, by the status that the server returns for it."""


class SignalThread:
    """Sends signals in a separate thread, because receivers may be slow. The thread starts with the first signal."""

    def __init__(self, options: WorkerOptions, queues: Sequence[FairQueue]) -> None:
        self._options = options
        self._queues = {queue.name: queue.parent_queue for queue in queues}
        self._waiting: deque[Callable[[], None]] = deque(maxlen=MAX_WAITING_SIGNALS)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._alert_senders = [make() for make in hooks.alert_senders]
        self._alert_log = AlertLog()

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Announce alerts, changes of incidents and endings of tasks. Can be called from any thread; returns at once."""
        if alerts := [announcement for announcement in announcements if isinstance(announcement, Alert)]:
            self._put([partial(report_alerts, alerts, self._alert_log)])
        if changes := [announcement for announcement in announcements if isinstance(announcement, IncidentChange)]:
            for sender in self._alert_senders:
                sender.put(changes)
            self._put([partial(report_incidents, changes, self._options.alert_email)])
        if endings := [announcement for announcement in announcements if isinstance(announcement, TaskEnding)]:
            self._put(partial(self._report_ending, ending, is_logged=ending.status == "canceled") for ending in endings)
        if deaths := [alert for alert in alerts if alert.kind == "died" and _has_receivers("dead")]:
            endings = [TaskEnding(death.queue, death.task_id, "dead", death.reason) for death in deaths]
            self._put(partial(self._report_ending, ending, is_logged=True) for ending in endings)

    def _report_ending(self, ending: TaskEnding, *, is_logged: bool) -> None:
        """Log the end of a task and send its signals, with the task's current data. If the task was deleted in the
        meantime, nothing is reported.
        """
        try:
            task = self._queues[ending.queue].get_task(ending.task_id)
        except TaskNotFoundError:
            return
        if not is_logged:
            log_ending(task, ending.status, ending.error, ending.delay)
        about: dict[str, Any] = {"task": task, "queue": ending.queue, "took": ending.took or 0.0, "error": ending.error}
        if ending.status == "canceled":
            about["task_id"] = ending.task_id
        _send_task_signals(ending.status, task.name, about, ending.delay, has_failed=ending.took is not None)

    def send_outcome_signals(self, queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> None:
        """Send the signals of these outcomes, if the signals have receivers."""
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
        """Wait up to ``seconds`` until the queued signals are sent. Signals that are queued later are sent too, if the
        process lives long enough.
        """
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
                    while not self._waiting and not self._ended and not self._alert_log.is_due:
                        self._changed.wait(self._alert_log.seconds_left)
                    some = list(self._waiting)
                    self._waiting.clear()
                    if not some and self._ended:
                        self._alert_log.write(at_once=True)
                        self._thread = None
                        return
                self._alert_log.write()
                for one in some:
                    call_safely("a piece of news", isolation.run_in_new_context, one)
                    isolation.clean_up_connections()
        finally:
            isolation.close_connections()


def _has_receivers(*statuses: str) -> bool:
    return any(signal.receivers for status in statuses for signal in OUTCOME_SIGNALS[status])


def send_signals_of_outcome(queue: str, outcome: Outcome, status: str) -> None:
    """Send the signals for one outcome that the server has accepted."""
    about: dict[str, Any] = {"task": outcome.lease.task, "queue": queue, "took": outcome.took}
    if status != "finished":
        about["error"] = outcome.body.decode("utf-8", "replace")
    if status == "canceled":
        about["task_id"] = outcome.lease.task_id
    # A task that snoozed itself has not failed, unless it had no time left and is dead.
    has_failed = status == "dead" or not outcome.is_put_off
    _send_task_signals(status, outcome.lease.name, about, outcome.delay, has_failed=has_failed)


def _send_task_signals(status: str, name: str, about: dict[str, Any], delay: float | None, *, has_failed: bool) -> None:
    for signal in OUTCOME_SIGNALS[status]:
        if has_failed or signal is not signals.task_failed:
            extra = {"delay": delay} if signal is signals.task_retried else {}
            send_signal(signal, name, **about, **extra)


class AlertLog:
    """Log lines about alerts. The first alert of a queue is logged at once; further alerts are logged as one line with
    their number every ten seconds. For use by one thread.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._last: dict[str, Alert] = {}
        self._next_line_at = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds until the next line is due; None if there are no alerts to log."""
        return max(0.0, self._next_line_at - monotonic()) if self._counts else None

    @property
    def is_due(self) -> bool:
        return self.seconds_left == 0.0

    def add(self, alert: Alert) -> None:
        self._counts.setdefault(alert.queue, Counter())[alert.kind] += 1
        self._last[alert.queue] = alert

    def write(self, *, at_once: bool = False) -> None:
        """Write the lines that are due; with ``at_once``, write all lines."""
        if not self._counts or not (at_once or self.is_due):
            return
        for queue, counts in self._counts.items():
            number, last = sum(counts.values()), self._last[queue]
            if number == 1:
                logger.warning("queue %s: %s", queue, last)
            else:
                kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())
                logger.warning("queue %s: %d alerts (%s); the last: %s", queue, number, kinds, last)
        self._counts, self._next_line_at = {}, monotonic() + ALERT_LOG_SECONDS


def report_alerts(alerts: Sequence[Alert], log: AlertLog) -> None:
    """Log the alerts and send their signals. For dead tasks only a line is logged, because their signals are sent in
    the same way as for all other endings.
    """
    for alert in alerts:
        if alert.task_id:
            log.add(alert)
            log.write()
        if alert.kind != "died":
            signal = ALERT_SIGNALS[alert.kind]
            isolation.run_in_new_context(partial(send_signal, signal, alert.name or alert.queue, alert=alert))


def report_incidents(changes: Sequence[IncidentChange], email: Sequence[str]) -> None:
    """Log the changes of incidents, and send them by e-mail and to registered senders."""
    for change in changes:
        (logger.info if change.kind == "closed" else logger.warning)("queue %s: %s", change.incident.queue, change)
        if email:
            call_safely(f"the e-mail to {', '.join(email)}", _send_email, change, email)


def call_safely(what: str, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except BaseException:  # noqa: BLE001 - it is the application's code, which may also raise SystemExit
        logger.exception("%s failed", what)


def _send_email(change: IncidentChange, recipients: Sequence[str]) -> None:
    from django.core.mail import send_mail

    incident = change.incident
    words = {"opened": "incident", "summary": "incident goes on", "closed": "recovered"}[change.kind]
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}queue {incident.queue}: {words}: {incident.title}"
    parts = [str(change), f"Show it: manage.py fairque_incidents --queue {incident.queue} {incident.id}"]
    if url := incident_url(incident):
        parts.append(url)
    if change.kind == "opened":
        parts.append(
            "The next mails about it: at most one in ten minutes while more alerts come, and one when it is over."
        )
    send_mail(" ".join(subject.split()), "\n\n".join(parts), None, list(recipients))
