"""What happens to tasks, told as Django signals; alerts also to the log, a callable of the application, and by e-mail."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string

from django_fairque import signals
from django_fairque.worker.execution import db_connections as database
from django_fairque.worker.execution import isolation
from django_fairque.worker.reporting import task_endings as endings
from django_fairque.worker.reporting.log import logger
from django_fairque.worker.reporting.send_signal import send
from django_fairque.worker.reporting.task_endings import Ending, Find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.dispatch import Signal

    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.statistics.alerts import Alert
    from django_fairque.worker.options import WorkerOptions

MOST_WAITING = 10_000
MOST_LINES = 50
"""Alerts named in one e-mail; the rest are counted."""

ALERTS: dict[str, Signal] = {
    "at_risk": signals.sla_at_risk,
    "violated": signals.sla_violated,
    "promoted": signals.task_promoted,
    "given_back": signals.task_given_back,
    "emptied": signals.data_lost,
    "went_back": signals.data_lost,
}
ENDS: dict[str, tuple[Signal, ...]] = {
    "finished": (signals.task_finished,),
    "retried": (signals.task_failed, signals.task_retried),
    "dead": (signals.task_failed, signals.task_dead),
    "canceled": (signals.task_canceled,),
}
"""By the server's word on an outcome."""

News = Callable[[], None]


class Herald:
    """Sends news in a thread of its own, which begins with the first: receivers may be slow."""

    def __init__(self, options: WorkerOptions, find: Find) -> None:
        self._options = options
        self._find = find
        self._waiting: deque[News] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def announce(self, news: Sequence[Alert | Ending]) -> None:
        """From any thread; returns at once."""
        options = self._options
        alerts = [each for each in news if not isinstance(each, Ending)]
        if alerts:
            self._put([partial(tell, alerts, options.alert_handler, options.alert_email)])
        if endings.is_heard():
            ends = [each if isinstance(each, Ending) else endings.of_alert(each) for each in news if _is_end(each)]
            if ends:
                self._put(partial(endings.tell, each, self._find) for each in ends)

    def report(self, queue: str, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> None:
        """What became of tasks, if anyone listens."""
        if not any(signal.receivers for some in ENDS.values() for signal in some):
            return
        self._put(
            partial(tell_end, queue, outcome, status)
            for outcome, status in zip(outcomes, statuses, strict=True)
            if status in ENDS
        )

    def worker(self, signal: Signal) -> None:
        """The worker has started, or has stopped."""
        if signal.receivers:
            about = {"worker_id": self._options.worker_id, "queues": self._options.queues}
            self._put([partial(send, signal, self._options.worker_id, **about)])

    def end(self, seconds: float) -> None:
        """Send what is waiting, for at most so long. What comes later is sent too, if the process lives long enough."""
        with self._changed:
            self._ended = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _put(self, news: Any) -> None:
        with self._changed:
            self._waiting.extend(news)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fairque-herald", daemon=True)
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
                    attempt("a piece of news", isolation.run_in_new_context, one)
                    database.tidy()
        finally:
            database.leave()


def _is_end(news: Alert | Ending) -> bool:
    return isinstance(news, Ending) or news.kind == "died"


def tell_end(queue: str, outcome: Outcome, status: str) -> None:
    """The signals of one outcome that the server has taken."""
    about: dict[str, Any] = {"task": outcome.lease.task, "queue": queue, "took": outcome.took}
    if status != "finished":
        about["error"] = outcome.body.decode("utf-8", "replace")
    for signal in ENDS[status]:
        if signal is signals.task_failed and outcome.kind == "later":
            continue  # it asked for another run: that is no failure
        send(signal, outcome.lease.name, **about, **_more(signal, outcome))


def _more(signal: Signal, outcome: Outcome) -> dict[str, Any]:
    """What only one of the signals has."""
    if signal is signals.task_retried:
        return {"delay": outcome.delay}
    return {"task_id": outcome.lease.task_id} if signal is signals.task_canceled else {}


def tell(alerts: Sequence[Alert], handler: str | None, email: Sequence[str]) -> None:
    """Log, signal, call, mail. Whatever fails is logged, and the rest goes on. Of deaths only the log: they have signals of
    their own, which tell of all others as well."""
    call = _imported(handler) if handler else None
    for alert in alerts:
        if alert.task_id:
            logger.warning("queue %s: %s", alert.queue, alert)
    alerts = [alert for alert in alerts if not _is_end(alert)]
    for alert in alerts:
        isolation.run_in_new_context(partial(send, ALERTS[alert.kind], alert.name or alert.queue, alert=alert))
        if call is not None:
            attempt(f"the alert handler {handler}", isolation.run_in_new_context, partial(call, alert))
    if email and alerts:
        attempt(f"the e-mail to {', '.join(email)}", _mail, alerts, email)


def _imported(path: str) -> Callable[[Alert], Any] | None:
    try:
        found: Callable[[Alert], Any] = import_string(path)
    except ImportError:
        logger.exception("the alert handler can't be imported (ALERT_HANDLER in FAIRQUE['WORKER'])")
        return None
    return found


def attempt(what: str, call: Callable[..., Any], *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - it is the application's code
        logger.exception("%s failed", what)


def _mail(alerts: Sequence[Alert], recipients: Sequence[str]) -> None:
    from django.core.mail import send_mail

    queues = ", ".join(sorted({alert.queue for alert in alerts}))
    lines = [str(alert) for alert in alerts[:MOST_LINES]]
    if len(alerts) > MOST_LINES:
        lines.append(f"and {len(alerts) - MOST_LINES} more")
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}{len(alerts)} alerts of queue {queues}"
    send_mail(subject, "\n".join(lines), None, list(recipients))
