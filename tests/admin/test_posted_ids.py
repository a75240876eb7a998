"""What an action is posted with is the very id that the page shows, whatever a browser makes of line ends and NULs."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

IDS = ["line\nbreak", "a\r\nb", "a\rb", "nul\0byte", "100%41", "%0A", "plain"]


def as_sent(text: str, field: str) -> list[str]:
    """What a browser sends of the fields of that name: HTML has no NUL, and a form's lines end with CR LF."""
    values = re.findall(rf'<input type="(?:hidden|checkbox)" name="{field}" value="([^"]*)"', text)
    assert values
    return [
        re.sub("\r\n|\r|\n", "\r\n", unescape(value).replace("\0", "\N{REPLACEMENT CHARACTER}")) for value in values
    ]


def act(client: Client, page: str, field: str, action: str, **query: str) -> None:
    """Open the page and press the button."""
    url = reverse(f"admin:django_fairque_{page}", query=query)
    values = as_sent(client.get(url).content.decode(), field)
    assert client.post(url, {"action": action, field: values[0]}).status_code == 302


@pytest.mark.parametrize("name", IDS)
def test_a_user(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create(name, 3, None))
    act(admin_client, "users", "user", "pause", user=name)
    assert queue.user(name).stats().paused


@pytest.mark.parametrize("name", IDS)
def test_an_organization(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.user("ann").set_organization(name)
    act(admin_client, "organizations", "organization", "pause", organization=name)
    assert queue.organization(name).stats().paused


@pytest.mark.parametrize("name", IDS)
def test_a_task(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create("u", 3, None, task_id=name))
    url = reverse("admin:django_fairque_tasks")
    (value,) = as_sent(admin_client.get(url).content.decode(), "task")
    question = admin_client.post(url, {"action": "cancel", "task": value})
    (value,) = as_sent(question.content.decode(), "task")
    assert admin_client.post(url, {"action": "cancel", "task": value, "confirm": "yes"}).status_code == 302
    assert queue.get_task(name).state is TaskState.CANCELED


@pytest.mark.parametrize("name", IDS)
def test_a_dead_letter(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create("u", 3, None, task_id=name, max_retries=0))
    lease = queue.pop("w")
    assert lease is not None
    queue.fail(lease, "broken")
    act(admin_client, "dead_letters", "entry", "requeue", show="letters")
    assert queue.get_task(name).state is TaskState.QUEUED


@pytest.mark.parametrize("name", IDS)
def test_a_schedule(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.schedules.add(name, task=Task.create("u", 3, None), every=3600)
    act(admin_client, "schedules", "name", "disable")
    assert not queue.schedules.get(name).enabled


@pytest.mark.parametrize("name", IDS)
def test_a_worker(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.heartbeat(name, {})
    act(admin_client, "workers", "worker", "drain")
    command = queue.heartbeat(name, {}).command
    assert command is not None
    assert command.kind == "drain"
