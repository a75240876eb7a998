"""Tests that a task in the outbox can be canceled before the commit and then never arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_fairque import task

from .conftest import arrived, enqueue, rows

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_task_in_the_outbox_can_be_canceled(queue: FairQueue) -> None:
    with transaction.atomic():
        result = enqueue(1)
        assert result.cancel() is True
        assert rows() == []
    assert arrived(queue) == []


def test_a_task_of_a_graph_in_the_outbox_can_be_canceled_with_its_dependents(queue: FairQueue) -> None:
    with transaction.atomic():
        parent = enqueue("parent")
        one = enqueue("one", depends_on=[parent])
        enqueue("other", depends_on=[parent])
        enqueue("anyhow", depends_on=[one], on_dependency_failure="run")
        assert one.cancel()
        assert not one.cancel()
    assert arrived(queue) == ["parent", "anyhow"]
    assert arrived(queue) == ["other"]
    assert rows() == []


def test_steps_of_a_run_in_the_outbox_can_be_canceled(queue: FairQueue) -> None:
    @task(name="step")
    def step(name: str) -> None: ...

    with transaction.atomic():
        together = (step.s("first") | step.s("second")).enqueue()
        assert together.results[0].cancel()
        behind = (step.s("third") >> step.s("fourth")).enqueue()
        assert behind.results[1].cancel()
        canceled = (step.s("fifth") >> step.s("sixth")).enqueue()
        assert canceled.cancel() == 2
    assert sorted(lease.payload["args"][0] for lease in queue.pop_batch(9, "w")) == ["second", "third"]
    assert queue.get_stats().states["deferred"] == 0
    assert rows() == []


def test_a_task_in_the_outbox_can_be_canceled_from_a_coroutine(queue: FairQueue) -> None:
    with transaction.atomic():
        result = enqueue(1)
        assert async_to_sync(result.acancel)() is True
    assert arrived(queue) == []
