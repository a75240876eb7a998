"""No page shows what an error says of a secret."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from django_fairque.engine.model.task import Task
from django_fairque.models import OutboxEntry
from django_fairque.monitoring.redaction import HIDDEN
from tests.admin.dead_letters import bury
from tests.admin.page_reader import page_url, read
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

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
    text = read(client, page_url(page, *args, **query))
    assert HIDDEN in text
    assert "refused: " in text
    return text


def test_pages_of_a_dead_letter_hide_secrets(admin_client: Client, entry: str) -> None:
    pages = (
        shown(admin_client, "dead_letter", entry),
        shown(admin_client, "task", "t"),
        shown(admin_client, "dead_letters"),
        shown(admin_client, "dead_letters", show="letters"),
    )
    for text in pages:
        assert "swordfish" not in text
    assert "Traceback" in pages[0]


def test_the_progress_of_a_task_hides_secrets(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("acme", 3, {}, task_id="t"))
    queue.set_progress(pop(queue), 1, 2, f"refused: {ERROR}")
    assert "swordfish" not in shown(admin_client, "task", "t")


def test_pages_of_the_outbox_hide_secrets(admin_client: Client, queue: FairQueue) -> None:
    payload = json.dumps({"args": [{"password": "swordfish"}], "order": 4711})
    tasks = json.dumps([{"task_id": "t", "user_id": "acme", "payload": payload}])
    entry = OutboxEntry.objects.create(
        queue="default", user_id="acme", task_id="t", tasks=tasks, last_error=ERROR, retry_at=timezone.now(), attempts=1
    )
    assert "swordfish" not in shown(admin_client, "outboxentry_changelist")
    text = shown(admin_client, "outboxentry_change", str(entry.pk))
    assert "swordfish" not in text
    assert "4711" in text


def test_the_payload_of_a_damaged_outbox_entry_is_hidden(admin_client: Client, queue: FairQueue) -> None:
    entry = OutboxEntry.objects.create(queue="default", user_id="acme", task_id="t", tasks='[{"password": "swordfish')
    text = read(admin_client, page_url("outboxentry_change", str(entry.pk)))
    assert "swordfish" not in text
    assert "24 bytes that are not shown" in text
