"""Alerts to a webhook, with real receivers: some accept, some refuse, redirect or hang."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from django_fairque.conf import get_queue
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.health import Alert
from django_fairque.engine.statistics.incidents import Incident, IncidentChange
from django_fairque.integrations import webhook
from django_fairque.monitoring.monitor import AlertRule, StatsMonitor
from django_fairque.signals import sla_at_risk
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.reporting.signal_thread import SignalThread
from tests.admin.page_reader import messages_of
from tests.fixture_types import Client, Redis, Server, Settings
from tests.tls import Authority

SECRET = "/services/secret-part"
ALERT = Alert("at_risk", 100.0, "default", "t1", "<!channel>", "app.report", Priority.HIGH, deadline=130.0)
INCIDENT = Incident("i1", "default", "sla", "HIGH", 90.0, 100.0, None, 3, str(ALERT), str(ALERT), {"<!channel>": 3})
OPENED = IncidentChange("opened", INCIDENT)


class Receiver(ThreadingHTTPServer):
    """Keeps what was posted, and answers with ``status``; with ``drips`` it sends its answer byte by byte, without an end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[dict[str, Any]] = []
        self.status = 200
        self.drips = False
        self.ended = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """A client that gives up is what some tests are about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{SECRET}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == SECRET
        self.server.posted.append(body)
        if self.server.drips:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Endless: ")
            while not self.server.ended.wait(0.05):
                self.wfile.write(b"x")
            return
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver(server: Server, redis: Redis, settings: Settings) -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"WEBHOOK": {"URL": made.url, "FORMAT": "json"}}}
    yield made
    made.ended.set()
    made.shutdown()
    made.server_close()


@pytest.fixture
def use_slack(settings: Settings, receiver: Receiver) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"WEBHOOK": {"URL": receiver.url, "FORMAT": "slack"}}}


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def announce(*announcements: Alert | IncidentChange) -> SignalThread:
    signal_thread = SignalThread(WorkerOptions("w"), [])
    signal_thread.announce(announcements)
    return signal_thread


def test_an_incident_is_sent_as_json_and_its_alerts_are_not(receiver: Receiver) -> None:
    announce(ALERT, ALERT, OPENED).end(10)
    (posted,) = receiver.posted
    assert posted == {
        "source": "django_fairque",
        "omitted": 0,
        "alerts": [
            {
                "kind": "opened",
                "queue": "default",
                "at": 100.0,
                "incident": "i1",
                "rule": "sla",
                "subject": "HIGH",
                "opened_at": 90.0,
                "alerts": 3,
                "users": {"<!channel>": 3},
                "text": str(OPENED),
                "url": None,
            }
        ],
    }


@pytest.mark.usefixtures("use_slack")
def test_a_name_in_a_slack_message_notifies_no_channel(receiver: Receiver) -> None:
    announce(*[OPENED] * (webhook.MAX_ALERTS_PER_MESSAGE + 5)).end(10)
    (posted,) = receiver.posted
    lines = posted["text"].splitlines()
    assert "of user '&lt;!channel&gt;' has 30 s left" in lines[0]
    assert lines[-1] == "and 5 more"


def test_a_receiver_that_hangs_delays_no_signal(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WEBHOOK_DEADLINE_SECONDS", 0.5)
    receiver.drips = True
    received: list[Alert] = []

    def on_alert(alert: Alert, **_: Any) -> None:
        received.append(alert)

    sla_at_risk.connect(on_alert, sender="app.report")
    try:
        signal_thread = announce(ALERT, OPENED)
        wait_until(lambda: bool(receiver.posted))
        signal_thread.announce([ALERT])
        wait_until(lambda: len(received) == 2)
        begun = time.monotonic()
        signal_thread.end(10)
        assert time.monotonic() - begun < 5
    finally:
        sla_at_risk.disconnect(on_alert, sender="app.report")


def test_refused_alerts_are_sent_again(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "MIN_RETRY_PAUSE_SECONDS", 0.05)
    receiver.status = 503
    signal_thread = announce(OPENED)
    wait_until(lambda: len(receiver.posted) > 1)
    receiver.status = 200
    signal_thread.end(10)
    last = len(receiver.posted)
    assert receiver.posted[-1]["alerts"][0]["incident"] == "i1"
    signal_thread.end(10)
    assert len(receiver.posted) == last
    assert (
        "alerts were not sent: the webhook failed: it answered with status 503; 1 alerts are sent again" in caplog.text
    )
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("status", "reason"),
    [(302, "it answered with a redirect (302), which is not followed"), (404, "it answered with status 404")],
)
def test_a_refused_alert_is_dropped(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, status: int, reason: str
) -> None:
    receiver.status = status
    signal_thread = announce(OPENED)
    wait_until(lambda: "dropped" in caplog.text)
    signal_thread.end(10)
    assert len(receiver.posted) == 1
    assert reason in caplog.text


def test_changes_of_a_monitor_are_one_message(receiver: Receiver) -> None:
    queue = get_queue()
    queue.push(Task.create("acme", 3, 1))
    monitor = StatsMonitor(queue, [AlertRule("depth", 0), AlertRule("idle_backlog", 0)])
    assert len(monitor.check()) == 2
    (posted,) = receiver.posted
    assert [alert["kind"] for alert in posted["alerts"]] == ["opened", "opened"]
    assert posted["alerts"][0]["text"].endswith(": over the limit of depth: ready tasks 1, over 0")
    receiver.status = 500
    queue.user("acme").purge()
    assert len(monitor.check()) == 2  # sending failed, and the check is not affected


def test_the_command_sends_a_test_alert(receiver: Receiver) -> None:
    out = StringIO()
    call_command("fairque_health", "--test-alert", stdout=out)
    assert out.getvalue() == "the webhook has accepted a test alert\n"
    assert receiver.posted[0]["alerts"][0]["kind"] == "test"
    receiver.status = 500
    with pytest.raises(CommandError, match="the webhook failed: it answered with status 500"):
        call_command("fairque_health", "--test-alert")


def test_the_command_without_a_webhook_is_an_error(server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    with pytest.raises(CommandError, match="no webhook is configured"):
        call_command("fairque_health", "--test-alert")


def test_an_unreachable_receiver_is_reported_without_its_address(server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"WEBHOOK": {"URL": f"http://127.0.0.1:1{SECRET}"}}}
    with pytest.raises(webhook.WebhookError, match=r"(?m)^the webhook failed: Connection refused$"):
        webhook.send_test_alert("default")


def test_a_certificate_is_verified(receiver: Receiver, settings: Settings, tmp_path: Path) -> None:
    receiver.socket = Authority(tmp_path).issue("127.0.0.1").wrap_socket(receiver.socket, server_side=True)
    settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"WEBHOOK": {"URL": receiver.url.replace("http:", "https:")}}}
    with pytest.raises(webhook.WebhookError, match="its certificate can't be verified"):
        webhook.send_test_alert("default")
    assert receiver.posted == []


@pytest.mark.django_db
class TestButton:
    URL = "admin:django_fairque_overview"

    def test_a_button_sends_a_test_alert(self, admin_client: Client, receiver: Receiver) -> None:
        page = admin_client.get(reverse(self.URL)).content.decode()
        assert 'value="test_alert"' in page
        assert "secret-part" not in page
        answer = admin_client.post(reverse(self.URL), {"action": "test_alert"}, follow=True)
        assert "The webhook has accepted a test alert." in answer.content.decode()
        assert len(receiver.posted) == 1
        receiver.status = 500
        answer = admin_client.post(reverse(self.URL), {"action": "test_alert"}, follow=True)
        assert messages_of(answer) == "the webhook failed: it answered with status 500"

    def test_the_test_alert_button_needs_the_permission(
        self, client: Client, receiver: Receiver, settings: Settings
    ) -> None:
        from django.contrib.auth.models import Permission, User

        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_queue"))
        client.force_login(viewer)
        assert 'value="test_alert"' not in client.get(reverse(self.URL)).content.decode()
        assert client.post(reverse(self.URL), {"action": "test_alert"}).status_code == 403
        assert receiver.posted == []

    def test_the_test_alert_button_is_hidden_without_a_webhook(
        self, admin_client: Client, receiver: Receiver, settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": settings.FAIRQUE["REDIS"]}
        assert 'value="test_alert"' not in admin_client.get(reverse(self.URL)).content.decode()
