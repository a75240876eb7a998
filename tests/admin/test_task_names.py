"""The page Task names: the busiest, slowest and most failing tasks."""

from __future__ import annotations

import re

import pytest

from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to, page_url, words_of
from tests.fixture_types import Client, FairQueue
from tests.leases import run_attempts

pytestmark = pytest.mark.django_db

URL = page_url("task_names")


def shown(client: Client, **query: str) -> str:
    answer = client.get(URL, query, headers={"X-Fairque-Fragment": "1"})
    assert answer.status_code == 200
    return answer.content.decode()


def names(html: str) -> list[str]:
    return re.findall(r'<th scope="row" class="fq-name"><a href="[^"]*"><bdi>([^<]*)</bdi>', html)


def test_a_queue_without_attempts_has_an_empty_table(admin_client: Client, queue: FairQueue) -> None:
    assert "No attempt ended in this time" in shown(admin_client)


def test_the_table_can_be_sorted(admin_client: Client, queue: FairQueue) -> None:
    for name, attempts, failed, took in (("busy", 90, 9, 0.01), ("slow", 2, 0, 100), ("failing", 5, 4, 1)):
        run_attempts(queue, name, attempts, failed, took)
    queue.push_batch([Task.create("a", 3, n, name="retried", max_retries=5) for n in range(3)])
    for lease in queue.pop_batch(3, "w"):
        queue.fail(lease, "no", delay=900)
    html = shown(admin_client)
    assert names(html) == ["busy", "failing", "retried", "slow"]
    assert "busy fails most: 9 of 90 attempts (10 %) failed." in words_of(html)
    assert "busy 90 9 10 %" in words_of(html)
    assert "failing 5 4 80 %" in words_of(html)
    assert "retried 3 3 100 %" in words_of(html)
    assert names(shown(admin_client, sort="p95", hours="24"))[0] == "slow"
    assert names(shown(admin_client, sort="share"))[:2] == ["retried", "failing"]
    assert names(shown(admin_client, sort="failed"))[0] == "busy"
    assert names(shown(admin_client, sort="retrying"))[0] == "retried"
    assert html.count('aria-sort="descending"') == 1


@pytest.mark.parametrize(
    ("query", "text"),
    [({"hours": "2"}, "hours must be 1 or 24, got 2."), ({"sort": "name"}, "can't be sorted by name.")],
)
def test_an_unknown_order_or_time_span_leads_to_the_default(
    admin_client: Client, queue: FairQueue, query: dict[str, str], text: str
) -> None:
    assert text in led_to(admin_client, URL, "task_names", query)


def test_an_empty_name_is_shown_as_other_names_and_a_hostile_name_as_text(
    admin_client: Client, queue: FairQueue
) -> None:
    for name in ("", "<script>alert(1)</script>\x00"):
        run_attempts(queue, name, 1)
    html = shown(admin_client)
    assert "(other names)" in html
    assert "<script" not in html
    assert "\x00" not in html
