"""A task that has ended is run again from its page, with the same or other arguments."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from django_fairque import task
from django_fairque.admin.pages import task_page
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from django_fairque.tasks import registry
from tests.admin.page_reader import page_url, post
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db


@pytest.fixture
def ended(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A finished task of a function with two parameters."""
    monkeypatch.setattr(registry, "_tasks", {})

    @task(name="add")
    def add(a: int, token: str = "") -> int:
        return a

    payload = {"args": [1], "kwargs": {"token": "s3cr3t"}}
    queue.push(Task.create("ann", 5, payload, task_id="t", name="add", max_retries=7, timeout=90))
    queue.finish(pop(queue, "w:1"), 1)
    return queue.get_task("t")


def page(task_id: str = "t") -> str:
    return page_url("task", task_id)


def act(client: Client, action: str, **fields: Any) -> str:
    return str(post(client, page(), action=action, **fields).content.decode())


def written(text: str) -> str:
    found = re.search(r'<textarea id="fq-payload"[^>]*>\n(.*?)</textarea>', text, re.DOTALL)
    assert found is not None
    return unescape(found[1])


def test_an_ended_task_runs_again_with_the_same_arguments(admin_client: Client, queue: FairQueue, ended: Task) -> None:
    assert "s3cr3t" not in admin_client.get(page()).content.decode()
    form = act(admin_client, "edit")
    assert json.loads(written(form)) == ended.payload
    answer = admin_client.post(page(), {"action": "run_again", "payload": written(form)}, follow=True)
    (again,) = queue.tasks("queued").items
    assert answer.redirect_chain[-1][0].startswith(page(again.task_id))
    for name in ("user_id", "priority", "payload", "name", "max_retries", "timeout"):
        assert getattr(again, name) == getattr(ended, name)
    assert queue.get_task("t").state is TaskState.FINISHED
    shown, enqueued = (entry.text for entry in AuditEntry.objects.order_by("id"))
    assert shown == "The payload is shown as it is, to run the task again"
    assert enqueued == f"Task {again.task_id} was enqueued."


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("{", "payload can&#x27;t be decoded"),
        ("[1]", "must be an object of args (a list) and kwargs (an object)"),
        ('{"args": [], "kwargs": {}}', "missing a required argument"),
        ('{"args": [1], "kwargs": {"other": "<b>"}}', "got an unexpected keyword argument"),
    ],
)
def test_arguments_that_do_not_fit_enqueue_nothing_and_stay_in_the_form(
    admin_client: Client, queue: FairQueue, ended: Task, payload: str, problem: str
) -> None:
    """Nothing is enqueued, and what was written stays in the form."""
    text = act(admin_client, "run_again", payload=payload)
    assert problem in text
    assert written(text) == payload
    assert queue.tasks("queued").items == []


def test_an_ended_task_is_run_again_with_other_arguments(admin_client: Client, queue: FairQueue, ended: Task) -> None:
    act(admin_client, "run_again", payload='{"args": [2], "kwargs": {}}')
    assert [task.payload for task in queue.tasks("queued")] == [{"args": [2], "kwargs": {}}]


def test_a_large_payload_is_hidden(
    admin_client: Client, queue: FairQueue, ended: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_page, "EDITABLE_PAYLOAD_MAX_BYTES", 10)
    text = act(admin_client, "edit")
    assert "too large to be shown in a form" in text
    assert "<textarea" not in text


def test_a_task_that_has_not_ended_can_not_be_run_again(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None, task_id="t"))
    assert "Run again" not in admin_client.get(page()).content.decode()
    assert "has not ended" in act(admin_client, "edit")
    assert "has not ended" in act(admin_client, "run_again", payload="null")
    assert len(queue.tasks("queued").items) == 1
