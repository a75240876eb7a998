"""No page shows what an error says of a secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone

from django_fairque.engine.model.task import Task
from django_fairque.models import OutboxEntry
from django_fairque.monitoring.redaction import HIDDEN
from tests.admin.dead_letters import bury

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

ERROR = "refused: password=swordfish, Authorization: Bearer swordfish.swordfish, redis://ann:swordfish@db/0"


def connect(dsn: str) -> None:
    raise ConnectionError(f"{ERROR}, {dsn!r}")


@pytest.fixture
def entry(queue: FairQueue) -> str:
    """A dead letter, with a traceback."""
    try:
        connect("https://swordfish@example.org")
    except ConnectionError as error:
        return bury(queue, error, payload={"password": "swordfish"}, task_id="t")
    raise AssertionError


def shown(client: Client, page: str, *args: str, **query: str) -> str:
    text = client.get(reverse(f"admin:django_fairque_{page}", args=args), query).content.decode()
    assert HIDDEN in text
    assert "refused: " in text
    return text


def test_of_a_dead_letter(admin_client: Client, entry: str) -> None:
    pages = (
        shown(admin_client, "dead_letter", quote(entry)),
        shown(admin_client, "task", quote("t")),
        shown(admin_client, "dead_letters"),
        shown(admin_client, "dead_letters", show="letters"),
    )
    for text in pages:
        assert "swordfish" not in text
    assert "Traceback" in pages[0]


def test_of_progress(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("acme", 3, {}, task_id="t"))
    lease = queue.pop("w")
    assert lease is not None
    queue.set_progress(lease, 1, 2, f"refused: {ERROR}")
    assert "swordfish" not in shown(admin_client, "task", "t")


def test_of_the_outbox(admin_client: Client, queue: FairQueue) -> None:
    payload = json.dumps({"args": [{"password": "swordfish"}], "order": 4711})
    tasks = json.dumps([{"task_id": "t", "user_id": "acme", "payload": payload}])
    entry = OutboxEntry.objects.create(
        queue="default", user_id="acme", task_id="t", tasks=tasks, last_error=ERROR, retry_at=timezone.now(), attempts=1
    )
    assert "swordfish" not in shown(admin_client, "outboxentry_changelist")
    text = shown(admin_client, "outboxentry_change", str(entry.pk))
    assert "swordfish" not in text
    assert "4711" in text


def test_of_the_outbox_what_is_damaged_is_not_shown(admin_client: Client, queue: FairQueue) -> None:
    entry = OutboxEntry.objects.create(queue="default", user_id="acme", task_id="t", tasks='[{"password": "swordfish')
    text = admin_client.get(reverse("admin:django_fairque_outboxentry_change", args=[entry.pk])).content.decode()
    assert "swordfish" not in text
    assert "24 bytes that are not shown" in text
