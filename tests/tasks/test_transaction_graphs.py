"""Tasks that depend on each other and are enqueued in a transaction, together with others."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_fairque import BacklogFullError, TaskNotFoundError, TaskState, get_queue, task
from tests.fixture_types import FairQueue, Settings

from .test_transactions import arrived, enqueue, in_transactions


def steps(*names: str) -> Any:
    @task(name="step")
    def step(name: str) -> None: ...

    return [step.using(user_id=f"user of {name}").s(name) for name in names]


@pytest.mark.thorough
@in_transactions
def test_other_tasks_of_a_transaction_are_no_part_of_its_graphs(queue: FairQueue) -> None:
    with transaction.atomic():
        for n in range(2500):  # a graph may have 2,000
            enqueue(n)
        first, second = steps("first", "second")
        (first >> second).enqueue()
    stats = queue.get_stats()
    assert (stats.states["queued"], stats.states["deferred"]) == (2501, 1)


@in_transactions
def test_a_full_backlog_refuses_its_user_alone(settings: Settings, queue: FairQueue) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
    queue = get_queue()
    enqueue("before", customer="full")
    with pytest.raises(BacklogFullError) as caught, transaction.atomic():  # noqa: PT012
        refused = enqueue("refused", customer="full")
        enqueue("accepted", customer="other")
        parent = enqueue("parent", customer="third")
        enqueue("child", customer="fourth", depends_on=[parent])
        first, second = steps("first", "second")
        run = (first >> second).enqueue()
    assert caught.value.refused == (refused.id,)
    assert run.state == "running"
    assert sorted(lease.payload["args"][-1] for lease in queue.pop_batch(9, "w")) == [
        "accepted",
        "before",
        "first",
        "parent",
    ]
    assert queue.get_stats().states["deferred"] == 2


@in_transactions
def test_dependents_of_a_dropped_task_are_dropped_with_it(queue: FairQueue) -> None:
    with transaction.atomic():
        parent = enqueue("parent")
        with transaction.atomic():
            child = enqueue("child", depends_on=[parent])
        grandchild = enqueue("grandchild", depends_on=[child])
        anyhow = enqueue("anyhow", depends_on=[child], on_dependency_failure="run")
        enqueue("unrelated")
        assert parent.cancel()
        assert not child.cancel()
        assert not parent.cancel()
    assert sorted(arrived(queue)) == ["anyhow", "unrelated"]
    assert anyhow.state is TaskState.STARTED
    assert grandchild.is_waiting


@in_transactions
def test_a_run_can_be_canceled_before_the_commit(queue: FairQueue) -> None:
    with transaction.atomic():
        first, second, third, fourth = steps("first", "second", "third", "fourth")
        run = (first >> second).enqueue()
        other = (third >> fourth).enqueue()
        assert run.cancel() == 2
        assert other.results[1].cancel()
    assert [lease.payload["args"] for lease in queue.pop_batch(9, "w")] == [["third"]]
    assert queue.get_stats().states["deferred"] == 0


@in_transactions
def test_a_task_that_can_not_be_sent_does_not_hold_back_others(queue: FairQueue, caplog: Any) -> None:
    with pytest.raises(TaskNotFoundError, match="does not know"), transaction.atomic():  # noqa: PT012
        lost = enqueue("lost", depends_on=["no such task"])
        enqueue("sent", depends_on=[enqueue("parent")])
        enqueue("single")
    assert sorted(arrived(queue)) == ["parent", "single"]
    assert queue.get_stats().states["deferred"] == 1
    (line,) = [record.getMessage() for record in caplog.records if "could not be sent" in record.getMessage()]
    assert "1 tasks" in line
    assert lost.id in line
