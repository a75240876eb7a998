"""Counts of a thousand and more have separators, wherever a page shows them."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import words_of
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db

COUNT = 1234


@pytest.fixture
def full(queue: FairQueue) -> FairQueue:
    """The queue has `COUNT` dead letters of one user, and as many ready, scheduled and dependent tasks."""
    queue.push_batch([Task.create("big", 3, None, name="mail.send") for _ in range(COUNT)])
    for _ in range(-(-COUNT // 500)):
        leases = queue.pop_batch(min(500, COUNT), "w", ["big"])
        queue.settle([Outcome.fail(lease, "OSError: no route", delay=None) for lease in leases])
    queue.push(Task.create("big", 3, None, task_id="parent"))
    children = [Task.create("big", 3, None, task_id=f"c{n}", depends_on=["parent"]) for n in range(COUNT)]
    queue.push_batch(children)
    queue.push_batch([Task.create("big", 3, None) for _ in range(COUNT - 1)])
    queue.push_batch([Task.create("big", 3, None, execute_after=4_000_000_000.0) for _ in range(COUNT)])
    return queue


@pytest.mark.parametrize(
    ("page", "query", "found"),
    [
        ("overview", {}, "1,234 dead letters wait for someone to look at them"),
        ("queues", {}, "1,234"),
        ("users", {}, "1,234"),
        ("users", {"user": "big"}, "ready 1,234 scheduled 1,234 wait for others 1,234"),
        ("tasks", {"state": "queued"}, "queued 1,234"),
        ("dead_letters", {}, "failed 1,234"),
        ("dependencies", {"task": "parent"}, "and 1,034 more"),
    ],
)
def test_thousands_are_separated(
    admin_client: Client, full: FairQueue, page: str, query: dict[str, str], found: str
) -> None:
    answer = admin_client.get(reverse(f"admin:django_fairque_{page}"), query)
    text = words_of(answer.content.decode())
    assert found in text
    assert re.findall(rf"(?<![\w-]){COUNT}(?![\w-])", text) == []


def test_a_tasks_page_separates_thousands(admin_client: Client, full: FairQueue) -> None:
    url = reverse("admin:django_fairque_task", args=["parent"])
    assert re.search(r"and 1,\d\d\d more", words_of(admin_client.get(url).content.decode()))
    question = words_of(admin_client.post(url, {"action": "cancel"}).content.decode())
    assert "parent is canceled, and 1,234 tasks that depend on it." in question


def test_questions_and_messages_separate_thousands(admin_client: Client, full: FairQueue) -> None:
    url = reverse("admin:django_fairque_users") + "?user=big"
    question = words_of(admin_client.post(url, {"action": "purge", "user": "big"}).content.decode())
    assert "All 3,702 tasks that user big has waiting will be canceled." in question
    done = admin_client.post(url, {"action": "purge", "user": "big", "confirm": "yes"}, follow=True)
    assert "3,702 tasks of user big were canceled." in words_of(done.content.decode())
