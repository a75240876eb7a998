"""Alerts leave the process: to the log, as Django signals, to a callable of the application, by e-mail."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string

from django_fairque import signals

from .log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.dispatch import Signal

    from django_fairque.engine.alerts import Alert

    from .options import WorkerOptions

MOST_WAITING = 10_000
MOST_LINES = 50
"""Alerts named in one e-mail; the rest are counted."""

SIGNALS: dict[str, Signal] = {
    "at_risk": signals.sla_at_risk,
    "violated": signals.sla_violated,
    "promoted": signals.task_promoted,
}


class Herald:
    """Announces alerts in a thread of its own, which begins with the first one: receivers may be slow."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._waiting: deque[Alert] = deque(maxlen=MOST_WAITING)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def announce(self, alerts: Sequence[Alert]) -> None:
        """From any thread; returns at once."""
        with self._changed:
            self._waiting.extend(alerts)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fairque-herald", daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self, seconds: float) -> None:
        """Announce what is waiting, for at most so long."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ended:
                    self._changed.wait()
                alerts = list(self._waiting)
                self._waiting.clear()
            if not alerts:
                return
            tell(alerts, self._options.alert_handler, self._options.alert_email)


def tell(alerts: Sequence[Alert], handler: str | None, email: Sequence[str]) -> None:
    """Log, signal, call, mail. Whatever fails is logged, and the rest goes on."""
    call = _imported(handler) if handler else None
    for alert in alerts:
        logger.warning("queue %s: %s", alert.queue, alert)
        for receiver, answer in SIGNALS[alert.kind].send_robust(sender=alert.name, alert=alert):
            if isinstance(answer, Exception):
                logger.error("the receiver %r of %s failed", receiver, alert.kind, exc_info=answer)
        if call is not None:
            _attempt(f"the alert handler {handler}", call, alert)
    if email:
        _attempt(f"the e-mail to {', '.join(email)}", _mail, alerts, email)


def _imported(path: str) -> Callable[[Alert], Any] | None:
    try:
        found: Callable[[Alert], Any] = import_string(path)
    except ImportError:
        logger.exception("the alert handler can't be imported (ALERT_HANDLER in FAIRQUE['WORKER'])")
        return None
    return found


def _attempt(what: str, call: Callable[..., Any], *arguments: Any) -> None:
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
