"""The pages of incidents, and lost workers on the page of workers."""

from __future__ import annotations

import time
from functools import partial

import pytest

from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import content_of, log_in, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script>'
url = partial(page_url, "incidents")


@pytest.fixture
def incident_id(queue: FairQueue) -> str:
    """An open incident: three tasks of a hostile user are late."""
    now = time.time()
    queue.push_batch([Task.create(HOSTILE, 3, None, name="app.report", sla=1) for _ in range(3)], now=now - 60)
    queue.sweep(now=now)
    (opened,) = queue.incidents.record(queue.take_alerts(now=now), now=now)
    return opened.incident.id


def test_open_incidents_come_before_closed_ones(admin_client: Client, queue: FairQueue, incident_id: str) -> None:
    queue.incidents.open_limit("depth", "text")
    queue.incidents.close_limit("depth")
    text = content_of(read(admin_client, url()))
    rows = [words_of(row) for row in text.split("<tbody>")[1].split("</tr>")[:-1]]
    assert rows[0].startswith("NORMAL tasks start late open")
    assert rows[1].startswith("over the limit of depth recovered")
    assert f"/id-{incident_id}/" in text.replace("_2D", "-")


def test_an_incident_has_a_page_with_its_users_and_tasks(
    admin_client: Client, queue: FairQueue, incident_id: str
) -> None:
    text = read(admin_client, url().replace("incidents/", f"incidents/id-{incident_id}/"))
    assert HOSTILE not in text
    words = words_of(content_of(text))
    for part in ("NORMAL tasks start late", f"{HOSTILE} 3", "Alerts 3", *queue.incidents.recent()[0].objects):
        assert part in words


def test_users_and_tasks_of_an_incident_need_their_permissions(
    client: Client, queue: FairQueue, incident_id: str
) -> None:
    log_in(client, "view_queue")
    words = words_of(content_of(read(client, url().replace("incidents/", f"incidents/id-{incident_id}/"))))
    assert "Alerts 3" in words
    assert "script" not in words
    assert "app.report" not in words


def test_an_unknown_incident_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    answer = admin_client.get(url().replace("incidents/", "incidents/id-gone/"), follow=True)
    assert "There is no incident gone: incidents are kept for 30 days." in answer.content.decode()


def test_a_lost_worker_is_listed_until_it_is_acknowledged(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("web-7-abcdef.0.1", {"concurrency": "4"}, now=time.time() - 120, ttl=60)
    page = page_url("workers")
    assert "web-7-abcdef" in words_of(content_of(read(admin_client, page)))
    post(admin_client, page, action="acknowledge", worker="web-7-abcdef")
    assert "web-7-abcdef" not in words_of(content_of(read(admin_client, page)))
    assert "no longer listed" in AuditEntry.objects.get().text
