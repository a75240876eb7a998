"""An action is posted with exactly the id that the page shows, although browsers change line ends and NULs."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.urls import reverse

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

IDS = ["line\nbreak", "a\r\nb", "a\rb", "nul\0byte", "100%41", "%0A", "plain"]


@pytest.fixture(params=IDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_sent(text: str, field: str) -> list[str]:
    """Return the values that a browser sends for that field: HTML has no NUL, and a form's lines end with CR LF."""
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


def test_a_user_of_any_name_is_paused(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create(name, 3, None))
    act(admin_client, "users", "user", "pause", user=name)
    assert queue.user(name).stats().paused


def test_an_organization_of_any_name_is_paused(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.user("ann").set_organization(name)
    act(admin_client, "organizations", "organization", "pause", organization=name)
    assert queue.organization(name).stats().paused


def test_a_task_of_any_id_is_canceled(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create("u", 3, None, task_id=name))
    url = reverse("admin:django_fairque_tasks")
    (value,) = as_sent(admin_client.get(url).content.decode(), "task")
    question = admin_client.post(url, {"action": "cancel", "task": value})
    (value,) = as_sent(question.content.decode(), "task")
    assert admin_client.post(url, {"action": "cancel", "task": value, "confirm": "yes"}).status_code == 302
    assert queue.get_task(name).state is TaskState.CANCELED


def test_a_dead_letter_of_any_id_is_requeued(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.push(Task.create("u", 3, None, task_id=name, max_retries=0))
    queue.fail(pop(queue), "broken")
    act(admin_client, "dead_letters", "entry", "requeue", show="letters")
    assert queue.get_task(name).state is TaskState.QUEUED


def test_a_schedule_of_any_name_is_paused(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.schedules.add(name, task=Task.create("u", 3, None), every=3600)
    act(admin_client, "schedules", "name", "pause")
    assert not queue.schedules.get(name).enabled


def test_a_worker_of_any_name_is_drained(admin_client: Client, queue: FairQueue, name: str) -> None:
    queue.heartbeat(name, {})
    act(admin_client, "workers", "worker", "drain")
    command = queue.heartbeat(name, {}).command
    assert (command and command.kind) == "drain"
