"""The pages of incidents, and lost workers on the page of workers."""

from __future__ import annotations

import time
from functools import partial

import pytest
from django.contrib import admin
from django.core import mail

from django_fairque.engine.inspection.worker_activity import ReportedTask, encode_activity
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.incidents import IncidentChange
from django_fairque.integrations.webhook import describe_change
from django_fairque.models import AuditEntry
from django_fairque.monitoring.reports.incident_impact import MAX_IMPACT_USERS
from django_fairque.worker.reporting.incident_links import incident_url
from django_fairque.worker.reporting.signal_thread import report_incidents
from tests.admin.dead_letters import bury
from tests.admin.page_reader import content_of, log_in, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue, Redis, Settings
from tests.lab.benchmarks.admin import cost
from tests.leases import pop

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


def test_incidents_that_are_open_are_listed_first(admin_client: Client, queue: FairQueue, incident_id: str) -> None:
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


def incident_page(incident_id: str) -> str:
    return url().replace("incidents/", f"incidents/id-{incident_id}/")


def test_an_incident_shows_affected_users_errors_releases_and_acts(
    admin_client: Client, queue: FairQueue, incident_id: str
) -> None:
    for _ in range(2):
        queue.finish(pop(queue, "w", [HOSTILE]), took=0.1)
    bury(queue, "password=hunter2 is wrong", user_id=HOSTILE)
    queue.heartbeat("w", {"code_version": "v1.1.0"})
    post(admin_client, page_url("users", user=HOSTILE), user=HOSTILE, action="pause")
    text = read(admin_client, incident_page(incident_id))
    assert HOSTILE not in text
    words = words_of(content_of(text))
    for part in (
        "1 user; starts later than the SLA: 3.",
        f"{HOSTILE} 3 3 about 40 s – 1",
        "1 dead letter is kept of the time from 10 minutes before until the end.",
        "v1.1.0",
        f"admin user {HOSTILE} User {HOSTILE} is paused",
        "Examined users: 1 of 1 that the queue knows",
    ):
        assert part in words
    assert "hunter2" not in words


def test_users_and_errors_around_an_incident_need_their_permissions(
    client: Client, queue: FairQueue, incident_id: str
) -> None:
    bury(queue, "no such address", user_id=HOSTILE)
    log_in(client, "view_queue")
    words = words_of(content_of(read(client, incident_page(incident_id))))
    assert "1 dead letter is kept" in words
    assert "script" not in words
    assert "address" not in words


def test_an_incident_costs_a_bounded_number_of_round_trips(
    admin_client: Client, queue: FairQueue, redis: Redis, incident_id: str
) -> None:
    queue.push_batch([Task.create(f"u{number}", 3, None) for number in range(MAX_IMPACT_USERS + 100)])
    page = incident_page(incident_id)
    assert f"Examined users: {MAX_IMPACT_USERS} of " in words_of(content_of(read(admin_client, page)))
    commands, trips = cost(redis, lambda: admin_client.get(page))
    assert (commands <= 2 * MAX_IMPACT_USERS + 100, trips <= 20) == (True, True)


def test_messages_link_to_the_page_of_an_incident(
    queue: FairQueue, incident_id: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (incident,) = queue.incidents.recent()
    assert incident_url(incident) is None
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django.contrib.sites"]
    settings.SITE_ID = 1
    from django.contrib.sites.models import SITE_CACHE, Site

    admin.site.unregister(Site)  # the other tests have no such app
    for domain, begin in (("example.com", None), ("shop.example", "https://shop.example")):
        monkeypatch.setitem(SITE_CACHE, 1, Site(domain=domain))
        found = incident_url(incident)
        assert found == (begin and f"{begin}{incident_page(incident_id)}?queue=default")
    change = IncidentChange("opened", incident)
    report_incidents([change], ["on-duty@example.com"])
    assert f"\n{found}\n" in mail.outbox[0].body
    assert describe_change(change)["url"] == found


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


def test_affected_users_are_found_by_alerts_before_late_tasks_of_that_time(
    admin_client: Client, queue: FairQueue, incident_id: str
) -> None:
    queue.push(Task.create("monsters", 3, None, sla=1e-6))
    queue.finish(pop(queue, "w", ["monsters"]))
    bury(queue, "image 97 is truncated")
    words = words_of(content_of(read(admin_client, incident_page(incident_id))))
    hurt = words.partition("Who was hurt")[2]
    alerts, _, late = hurt.partition("All late tasks of this time, whatever the cause")
    assert f"Users with most alerts User Alerts {HOSTILE} 3" in alerts
    assert "monsters" not in alerts
    assert "monsters 1" in late
    assert "First dead letter of this time" in words


def test_users_whose_tasks_a_lost_worker_ran_are_listed_first(admin_client: Client, queue: FairQueue) -> None:
    ids = queue.push_batch([Task.create("duff", 3, None, name="shop.send") for _ in range(2)], now=time.time() - 300)
    slots: list[tuple[list[str], ReportedTask | None]] = [
        ([], ReportedTask(task.task_id, "shop.send", "duff", time.time() - 200)) for task in ids
    ]
    activity = encode_activity(time.time() - 180, slots).decode()
    queue.heartbeat("web-7-abcdef.0.1", {"activity": activity}, now=time.time() - 180, ttl=60)
    (opened,) = queue.incidents.update()
    queue.finish(pop(queue, "w"))
    words = words_of(content_of(read(admin_client, incident_page(opened.incident.id))))
    hurt = words.partition("Who was hurt")[2]
    assert hurt.strip().startswith("Users whose tasks the lost workers ran User Tasks duff 2")
    assert "shop.send duff finished shop.send duff queued" in hurt
