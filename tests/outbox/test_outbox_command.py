"""Tests of the outbox's command and of its page in the admin."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone

from django_fairque.models import AuditEntry, OutboxEntry
from django_fairque.outbox import relay
from django_fairque.signals import task_pushed

from .conftest import arrived, rows
from .test_outbox import TestRelay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])
left_behind = TestRelay.left_behind


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("fairque_outbox", *arguments, stdout=out)
    return out.getvalue()


def break_first() -> OutboxEntry:
    entry = rows()[0]
    OutboxEntry.objects.filter(pk=entry.pk).update(
        is_stuck=True, attempts=3, last_error="no such queue", retry_at=timezone.now() + timedelta(hours=1)
    )
    return entry


@pytest.fixture
def received() -> Iterator[list[object]]:
    """Return a list of the tasks that receivers of ``task_pushed`` got."""
    found: list[object] = []
    task_pushed.connect(receiver := lambda task, **_: found.append(task.payload["args"][1]))
    yield found
    task_pushed.disconnect(receiver)


class TestCommand:
    def test_the_outbox_command_says_that_no_row_waits(self, queue: FairQueue) -> None:
        assert run() == "database default: nothing waits\ndatabase other: nothing waits\n"

    def test_the_outbox_command_lists_waiting_rows_with_their_errors(
        self, queue: FairQueue, capsys: pytest.CaptureFixture[str]
    ) -> None:
        left_behind(1, 2)
        assert "database default: 2 wait, the oldest for" in run("--database", "default")
        entry = break_first()
        out = StringIO()
        with pytest.raises(SystemExit) as ended:
            call_command("fairque_outbox", stdout=out)
        assert ended.value.code == 1
        assert "1 have failed, 1 are stuck" in out.getvalue()
        assert f"{entry.task_id}" in out.getvalue()
        assert "no such queue" in out.getvalue()

    def test_the_outbox_command_relays_all_rows(self, queue: FairQueue) -> None:
        left_behind(1, 2)
        break_first()
        text = run("--relay")
        assert "database default: 2 tasks relayed\ndatabase default: nothing waits" in text
        assert arrived(queue) == [1, 2]

    def test_rows_relayed_by_the_command_send_the_push_signal(self, queue: FairQueue, received: list[object]) -> None:
        left_behind(1, 2)
        run("--relay")
        assert received == [1, 2]

    def test_the_outbox_command_refuses_an_unknown_database(self, queue: FairQueue) -> None:
        with pytest.raises(CommandError, match="there is one in 'default', 'other'"):
            run("--database", "nowhere")

    def test_the_outbox_command_reports_a_server_that_is_down(self, queue: FairQueue, settings: Settings) -> None:
        left_behind(1)
        settings.FAIRQUE = {
            "REDIS": {"URL": "unix:///nowhere.sock"},
            "OUTBOX": True,
            "QUEUE": {"REQUEST_TIMEOUT": 0.05},
        }
        with pytest.raises(CommandError, match="0 tasks relayed, then: the server can't be reached"):
            run("--relay")
        assert rows()[0].attempts == 1

    def test_the_outbox_command_says_that_the_outbox_is_off(self, queue: FairQueue, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": False}
        assert "The outbox is off" in run()


class TestAdmin:
    LIST = "admin:django_fairque_outboxentry_changelist"

    def test_the_admin_lists_waiting_rows_of_the_outbox(self, admin_client: Client, queue: FairQueue) -> None:
        left_behind(1)
        entry = break_first()
        page = admin_client.get(reverse(self.LIST)).content.decode()
        assert "no such queue" in page
        assert "work (default, acme)" in page
        detail = admin_client.get(reverse("admin:django_fairque_outboxentry_change", args=[entry.pk]))
        assert entry.task_id in detail.content.decode()

    def test_the_admin_lets_nobody_write_rows_of_the_outbox(self, admin_client: Client, queue: FairQueue) -> None:
        left_behind(1)
        assert admin_client.get(reverse("admin:django_fairque_outboxentry_add")).status_code == 403
        change = reverse("admin:django_fairque_outboxentry_change", args=[rows()[0].pk])
        assert admin_client.post(change, {"queue": "x"}).status_code == 403

    def test_the_admin_can_relay_rows_of_the_outbox_again(self, admin_client: Client, queue: FairQueue) -> None:
        left_behind(1, 2)
        entry = break_first()
        data = {"action": "try_again", "_selected_action": [entry.pk]}
        answer = admin_client.post(reverse(self.LIST), data, follow=True)
        assert "2 tasks were relayed." in answer.content.decode()
        assert arrived(queue) == [1, 2]
        assert str(AuditEntry.objects.get()) == "default: work (acme)"

    def try_again(self, client: Client) -> str:
        data = {"action": "try_again", "_selected_action": [rows()[0].pk]}
        return client.post(reverse(self.LIST), data, follow=True).content.decode()

    def test_rows_relayed_by_the_admin_send_signals(
        self, admin_client: Client, queue: FairQueue, received: list[object]
    ) -> None:
        left_behind(1, 2)
        self.try_again(admin_client)
        assert received == [1, 2]

    def test_the_admin_says_that_more_rows_remain_in_the_outbox(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(relay, "MAX_ROWS_PER_RELAY", 2)
        left_behind(1, 2, 3)
        page = self.try_again(admin_client)
        assert "2 tasks were relayed." in page
        assert "These users have more entries" in page
        page = self.try_again(admin_client)
        assert "1 task was relayed." in page
        assert "These users have more entries" not in page

    @pytest.mark.parametrize("how", ["down", "hung"])
    def test_the_outbox_page_does_not_wait_for_a_server(
        self, admin_client: Client, queue: FairQueue, make_server: MakeServer, settings: Settings, how: str
    ) -> None:
        left_behind(1)
        server = make_server()
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "OUTBOX": True}
        if how == "down":
            server.stop()
        else:
            os.kill(server.pid, signal.SIGSTOP)
        begun = time.monotonic()
        page = self.try_again(admin_client)
        took = time.monotonic() - begun
        if how == "hung":
            os.kill(server.pid, signal.SIGCONT)
        assert '<li class="error">' in page
        assert "0 tasks were relayed." in page
        assert rows()[0].attempts == 1
        assert took < 8, "two seconds by design, and a slow machine"

    def test_the_admin_needs_the_change_permission_to_relay_rows(self, client: Client, queue: FairQueue) -> None:
        left_behind(1)
        user = User.objects.create_user("staff", password="x", is_staff=True)
        client.force_login(user)
        assert client.get(reverse(self.LIST)).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_outboxentry"))
        data = {"action": "try_again", "_selected_action": [rows()[0].pk]}
        assert "try_again" not in client.get(reverse(self.LIST)).content.decode()
        client.post(reverse(self.LIST), data)
        assert len(rows()) == 1
