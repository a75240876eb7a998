"""What staff cancel is told to receivers of `task_canceled`, by whichever page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_fairque import Task, signals
from django_fairque.admin.pages import base as purging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db


@pytest.fixture
def heard() -> Iterator[list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []

    def receiver(sender: str, task: Task, **_: Any) -> None:
        found.append((sender, task.task_id))

    signals.task_canceled.connect(receiver)
    yield found
    signals.task_canceled.disconnect(receiver)


def url(page: str, *parts: str, **query: str) -> str:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return reverse(f"admin:django_fairque_{page}", args=parts) + f"?{asked}"


def push(queue: FairQueue, task_id: str, *parents: str) -> str:
    return queue.push(Task.create("ann", 3, None, name="work", task_id=task_id, depends_on=parents)).task_id


CANCELING = {
    "one": (url("task", quote("a")), {"action": "cancel", "confirm": "yes"}, ["a"]),
    "selected": (url("tasks"), {"action": "cancel", "task": ["a", "c"], "confirm": "yes"}, ["a", "c"]),
    "all that match": (
        url("tasks", state="queued", user="ann"),
        {"action": "cancel_all", "confirm": "yes", "done": "0", "left": "2"},
        ["a", "c"],
    ),
    "with what depends on it": (
        url("dependencies", task="a"),
        {"action": "cancel_subtree", "confirm": "yes"},
        ["b", "a"],
    ),
    "of a user": (url("users", user="ann"), {"action": "purge", "user": "ann", "confirm": "yes"}, ["b", "a", "c"]),
    "of a queue": (url("queues", queue="default"), {"action": "purge", "confirm": "yes"}, ["b", "a", "c"]),
}


@pytest.mark.parametrize("what", CANCELING)
def test_canceling(admin_client: Client, queue: FairQueue, heard: list[tuple[str, str]], what: str) -> None:
    push(queue, "a")
    push(queue, "b", "a")
    push(queue, "c")
    address, fields, told = CANCELING[what]
    assert admin_client.post(address, fields, follow=True).status_code == 200
    assert sorted(heard) == sorted(("work", each) for each in told)
    admin_client.post(address, fields, follow=True)
    assert len(heard) == len(told)


def test_slices_of_a_purge(
    admin_client: Client, queue: FairQueue, heard: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 2)
    ids = [push(queue, f"t{number}") for number in range(3)]
    for told in (2, 3):
        fields = {"action": "purge", "user": "ann", "confirm": "yes"}
        admin_client.post(url("users", user="ann"), fields, follow=True)
        assert [task_id for _, task_id in heard] == ids[:told]
