"""The audit page: what operators did, from the admin's log."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from django_fairque.admin.pages import audit
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import allow, log_in, words_of
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db


def shown(client: Client, **query: str) -> str:
    answer = client.get(reverse("admin:django_fairque_audit"), query, headers={"X-Fairque-Fragment": "1"})
    assert answer.status_code == 200
    return words_of(answer.content.decode().partition("</form>")[2])


def enter(actor: str, subject: str, text: str, **fields: str) -> None:
    AuditEntry.objects.create(**{"queue": "default", "kind": "user", **fields}, actor=actor, subject=subject, text=text)


def test_actions_of_operators_are_found_by_user_and_queue(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("acme", 3, None))
    users = reverse("admin:django_fairque_users")
    for user, where in (("acme", "default"), ("bolt", "default"), ("acme", "mail")):
        admin_client.post(f"{users}?queue={where}", {"action": "pause", "user": user, "confirm": "yes"})
    text = shown(admin_client)
    assert text.index("user bolt") < text.index("user acme"), "the newest first"
    assert text.count("user acme") == 1, "that of the other queue is not among them"
    assert "bolt" not in shown(admin_client, text="acme")
    assert shown(admin_client, queue="mail", text="ACM").count("user acme") == 1
    assert shown(admin_client, operator="somebody") == "No entry matches."


def test_entries_are_paged_and_a_search_is_bounded(
    admin_client: Client, admin_user: User, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_ENTRIES_SEARCHED", 60)
    for number in range(120):
        enter("admin", f"user-{number:03}", "Paused.")
    first = admin_client.get(reverse("admin:django_fairque_audit"))
    assert [row["entry"].subject for row in first.context["rows"]] == [f"user-{n:03}" for n in range(119, 69, -1)]
    second = admin_client.get(first.context["next"])
    assert second.context["rows"][0]["entry"].subject == "user-069"
    assert "user-060" in shown(admin_client, text="user-060")
    assert shown(admin_client, text="user-059") == "No entry matches. Texts are searched in the newest 60 entries."


def test_other_queues_and_secrets_are_not_shown_and_the_outbox_needs_its_permission(
    client: Client, queue: FairQueue
) -> None:
    staff = log_in(client, "view_queue")
    name = "<i>staff</i>"
    enter(name, "acme", "Paused.", queue="default-2")
    enter(name, "send (acme)", "Tried again.", kind="outbox")
    assert shown(client) == "No entry matches."
    enter(name, "<b>acme</b>", "Requeued with password=hunter2.")
    text = shown(client)
    assert "<i>staff</i> user <b>acme</b> Requeued" in text.replace("  ", " ")
    assert "hunter2" not in text
    allow(staff, "view_outboxentry")
    assert "send (acme) Tried again." in shown(client)


@pytest.mark.parametrize("value", ["9" * 40, "-1", "x", "\0", "%"])
def test_the_audit_page_answers_any_query(admin_client: Client, queue: FairQueue, value: str) -> None:
    for key in ("after", "operator", "object", "kind", "text"):
        shown(admin_client, **{key: value})
