"""Sends messages about incidents to the webhook in ``MONITOR["WEBHOOK"]``.

The URL is a secret, because everyone who knows it can post messages. No error or log line of this module contains the
URL. Sending to a receiver that does not answer takes at most `WEBHOOK_DEADLINE_SECONDS`, and redirects are not
followed.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # not the built-in error before Python 3.11
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError, FairQueueError
from django_fairque.safely import get_logger
from django_fairque.version import __version__
from django_fairque.worker.common import isolation
from django_fairque.worker.reporting.incident_links import incident_url

if TYPE_CHECKING:
    from django_fairque.conf.sections import WebhookConfig
    from django_fairque.engine.statistics.incidents import IncidentChange

logger = get_logger("django_fairque.monitoring")

WEBHOOK_DEADLINE_SECONDS = 5.0
"""Maximum seconds for one message: connecting, sending the message, and reading the status of the answer."""
MAX_ALERTS_PER_MESSAGE = 50
"""Maximum number of alerts in one message; further alerts are only counted."""
MAX_WAITING_ALERTS = 1000
"""Maximum number of alerts that are kept while the receiver fails. Then a new alert replaces the oldest one."""
MIN_RETRY_PAUSE_SECONDS = 5.0
MAX_RETRY_PAUSE_SECONDS = 60.0
WEBHOOK_WARNING_SECONDS = 60.0
"""Seconds between two log lines about a receiver that keeps failing."""


class WebhookError(FairQueueError):
    """The receiver has not accepted a message. ``is_final`` shows that repeating the message would be useless."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(f"the webhook failed: {text}")
        self.is_final = is_final


def describe_change(change: IncidentChange) -> dict[str, Any]:
    """Return the message about a change of an incident, as an object of the JSON format."""
    incident = change.incident
    at = incident.last_at if incident.closed_at is None else incident.closed_at
    return {
        "kind": change.kind,
        "queue": incident.queue,
        "at": at,
        "incident": incident.id,
        "rule": incident.rule,
        "subject": incident.subject,
        "opened_at": incident.opened_at,
        "alerts": incident.alerts,
        "users": dict(incident.users),
        "text": str(change),
        "url": incident_url(incident),
    }


def send_alerts(alerts: Sequence[dict[str, Any]]) -> None:
    """Send one message with these alerts.

    Args:
        alerts: objects with at least ``queue`` and ``text``; more than `MAX_ALERTS_PER_MESSAGE` are only counted.

    Raises:
        ConfigurationError: no webhook is configured.
        WebhookError: the receiver has not accepted the message within `WEBHOOK_DEADLINE_SECONDS`.
    """
    webhook = get_config().monitor.webhook
    if webhook is None:
        raise ConfigurationError("no webhook is configured: set FAIRQUE['MONITOR']['WEBHOOK'] = {'URL': …}")
    _post(webhook, _body(webhook, alerts))


def send_test_alert(queue: str) -> None:
    """Send a test alert about ``queue``. Raises the errors of `send_alerts`."""
    text = "This is a test alert of django_fairque. No action is necessary."
    send_alerts([{"kind": "test", "queue": queue, "text": text}])


def _body(webhook: WebhookConfig, alerts: Sequence[dict[str, Any]]) -> bytes:
    shown = alerts[:MAX_ALERTS_PER_MESSAGE]
    omitted = len(alerts) - len(shown)
    if webhook.format == "json":
        content: dict[str, Any] = {"source": "django_fairque", "alerts": shown, "omitted": omitted}
    else:
        lines = [
            _for_slack(f"queue {alert['queue']}: {alert['text']} {alert.get('url') or ''}".strip()) for alert in shown
        ]
        if omitted:
            lines.append(f"and {omitted:,} more")
        content = {"text": "\n".join(lines), "mrkdwn": False}
    return json.dumps(content).encode()


def _for_slack(text: str) -> str:
    """Put the text on one line, and disable mentions of channels and links in it, because names and ids come from
    users.
    """
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _post(webhook: WebhookConfig, body: bytes) -> None:
    url = urlsplit(webhook.url.get_secret_value())
    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = kind(str(url.hostname), url.port, timeout=WEBHOOK_DEADLINE_SECONDS)
    target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
    answer: Future[int] = Future()
    # Run the request in a thread with a deadline: a slow name server, or a receiver that sends one byte per second,
    # exceeds any socket time-out.
    arguments = (connection, target, body, answer)
    threading.Thread(target=_request, args=arguments, name="fairque-webhook-request", daemon=True).start()
    try:
        status = answer.result(WEBHOOK_DEADLINE_SECONDS)
    except FutureTimeoutError:
        connected = connection.sock
        if connected is not None:
            with suppress(OSError):  # the process has ended in the meantime
                connected.shutdown(socket.SHUT_RDWR)
        raise WebhookError(f"no answer within {WEBHOOK_DEADLINE_SECONDS:g} s") from None
    except Exception as error:  # noqa: BLE001 - the client may raise anything for a bad answer
        raise WebhookError(_reason(error)) from None
    if 300 <= status < 400:
        raise WebhookError(f"it answered with a redirect ({status}), which is not followed", is_final=True)
    if not 200 <= status < 300:
        raise WebhookError(
            f"it answered with status {status}", is_final=400 <= status < 500 and status not in (408, 429)
        )


def _request(connection: HTTPConnection, target: str, body: bytes, answer: Future[int]) -> None:
    try:
        headers = {"Content-Type": "application/json", "User-Agent": f"django_fairque/{__version__}"}
        connection.request("POST", target, body, headers)
        answer.set_result(connection.getresponse().status)
    except Exception as error:  # noqa: BLE001 - the caller decides
        answer.set_exception(error)
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    """Return the reason why a request failed, without the client's own error texts, which may contain the URL."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be verified ({error.verify_message})"
    if isinstance(error, socket.gaierror):
        return "its host name can't be resolved"
    if isinstance(error, TimeoutError):
        return f"no answer within {WEBHOOK_DEADLINE_SECONDS:g} s"
    if isinstance(error, HTTPException):
        return "its answer is not HTTP"
    return getattr(error, "strerror", None) or type(error).__name__


class WebhookSender:
    """Sends alerts in a separate thread, which starts with the first alert. A message that the receiver does not accept
    is sent again later.
    """

    def __init__(self) -> None:
        self._waiting: deque[IncidentChange] = deque(maxlen=MAX_WAITING_ALERTS)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self._pause = 0.0
        self._next_warning_at = 0.0

    def put(self, changes: Iterable[IncidentChange]) -> None:
        """Queue messages about these changes. Returns at once; without a configured webhook, the messages are
        dropped.
        """
        try:
            if get_config().monitor.webhook is None:
                return
        except ConfigurationError:  # programs can create a queue without a configuration
            return
        with self._changed:
            self._waiting.extend(changes)
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._run, name="fairque-webhook", daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self, seconds: float) -> None:
        """Send the waiting alerts in one attempt, which takes at most ``seconds``."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._pause:
                    self._changed.wait_for(lambda: self._is_ending, self._pause)
                self._changed.wait_for(lambda: self._waiting or self._is_ending)
                changes = list(self._waiting)
                self._waiting.clear()
                is_last = self._is_ending
                if not changes:
                    self._thread = None
                    return
            is_sent = self._send(changes)
            with self._changed:
                if not is_sent:  # newer alerts are sent later; if there are too many, the oldest alerts are dropped
                    self._waiting = deque([*changes, *self._waiting], maxlen=MAX_WAITING_ALERTS)
                if is_last:
                    self._thread = None
                    return

    def _send(self, changes: list[IncidentChange]) -> bool:
        """Send messages about the changes. Return False if they must be sent again."""
        try:
            send_alerts(list(map(describe_change, changes)))
        except Exception as error:  # noqa: BLE001 - the thread must go on for later alerts
            is_final = isinstance(error, ConfigurationError) or getattr(error, "is_final", False)
            self._pause = min(MAX_RETRY_PAUSE_SECONDS, 2 * self._pause or MIN_RETRY_PAUSE_SECONDS)
            if monotonic() >= self._next_warning_at:
                self._next_warning_at = monotonic() + WEBHOOK_WARNING_SECONDS
                text = (
                    str(error) if isinstance(error, FairQueueError) else f"the webhook failed: {type(error).__name__}"
                )
                outcome = "dropped" if is_final else "sent again later"
                logger.warning("alerts were not sent: %s; %d alerts are %s", text, len(changes), outcome)
            return is_final
        finally:
            isolation.close_connections()  # building the messages has read the site's address from the database
        self._pause = 0.0
        return True
