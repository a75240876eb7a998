"""Each page on which staff cancel tasks sends `task_canceled`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_fairque import Task, signals
from django_fairque.admin.pages import base as purging
from tests.admin.page_reader import page_url
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db


@pytest.fixture
def received() -> Iterator[list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []

    def receiver(sender: str, task: Task, **_: Any) -> None:
        found.append((sender, task.task_id))

    signals.task_canceled.connect(receiver)
    yield found
    signals.task_canceled.disconnect(receiver)


def push(queue: FairQueue, task_id: str, *parents: str) -> str:
    return queue.push(Task.create("ann", 3, None, name="work", task_id=task_id, depends_on=parents)).task_id


CANCELING = {
    "one": (page_url("task", "a"), {"action": "cancel", "confirm": "yes"}, ["a"]),
    "selected": (page_url("tasks"), {"action": "cancel", "task": ["a", "c"], "confirm": "yes"}, ["a", "c"]),
    "all that match": (
        page_url("tasks", state="queued", user="ann"),
        {"action": "cancel_all", "confirm": "yes", "done": "0", "left": "2"},
        ["a", "c"],
    ),
    "a task and its dependents": (
        page_url("dependencies", task="a"),
        {"action": "cancel_subtree", "confirm": "yes"},
        ["b", "a"],
    ),
    "of a user": (page_url("users", user="ann"), {"action": "purge", "user": "ann", "confirm": "yes"}, ["b", "a", "c"]),
    "of a queue": (page_url("queues", queue="default"), {"action": "purge", "confirm": "yes"}, ["b", "a", "c"]),
}


@pytest.mark.parametrize("what", CANCELING)
def test_a_signal_is_sent_for_each_task_that_staff_cancel(
    admin_client: Client, queue: FairQueue, received: list[tuple[str, str]], what: str
) -> None:
    push(queue, "a")
    push(queue, "b", "a")
    push(queue, "c")
    address, fields, expected = CANCELING[what]
    assert admin_client.post(address, fields, follow=True).status_code == 200
    assert sorted(received) == sorted(("work", task_id) for task_id in expected)
    admin_client.post(address, fields, follow=True)
    assert len(received) == len(expected)


def test_signals_of_a_large_purge_are_sent_in_slices(
    admin_client: Client, queue: FairQueue, received: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 2)
    ids = [push(queue, f"t{number}") for number in range(3)]
    for expected in (2, 3):
        fields = {"action": "purge", "user": "ann", "confirm": "yes"}
        admin_client.post(page_url("users", user="ann"), fields, follow=True)
        assert [task_id for _, task_id in received] == ids[:expected]
