"""Commands that cancel tasks send `task_canceled`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError

from django_fairque import Task, signals
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import results
from tests.commands.conftest import Push, Run


@pytest.fixture
def received() -> Iterator[list[tuple[str, str, str]]]:
    found: list[tuple[str, str, str]] = []

    def receiver(sender: str, task: Task, queue: str, **_: Any) -> None:
        found.append((sender, task.task_id, queue))

    signals.task_canceled.connect(receiver)
    yield found
    signals.task_canceled.disconnect(receiver)


def test_canceling_a_task_or_a_run_sends_a_signal_for_each_task_once(
    queue: FairQueue, run: Run, push: Push, received: list[tuple[str, str, str]]
) -> None:
    alone = push()
    queue.push_graph([Task.create("acme", 3, None, name="app.a", task_id="a")], "r")
    for _ in range(2):
        run("fairque_task", "cancel", alone)
        run("fairque_task", "cancel-run", "r")
    assert received == [("mail.send", alone, "default"), ("app.a", "a", "default")]
    with pytest.raises(CommandError):
        run("fairque_task", "cancel", "unknown")
    assert len(received) == 2


def test_a_purge_sends_a_signal_for_each_waiting_task_of_the_user(
    run: Run, push: Push, received: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MAX_TASKS_PER_CANCEL", 2)
    ids = [push() for _ in range(4)]
    assert run("fairque_user", "purge", "acme") == "4 tasks of 'acme' canceled\n"
    assert [task_id for _, task_id, _ in received] == ids
