"""Canceling many tasks: which of them it were is noted, and many are read at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, push_many, task


@pytest.fixture(params=[1, 4])
def queue(request: pytest.FixtureRequest, redis: Redis) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=QueueConfig(shards=request.param))
    yield made
    assert made.check_invariants() == []


def test_canceled_tasks_are_noted_and_ended_tasks_are_not(queue: FairQueue) -> None:
    noted: list[str] = []
    ids = [*push_many(queue, "ann", 250), *push_many(queue, "bob", 3), *push_many(queue, "cem", 3)]
    queue.cancel(ids[0], now=NOW)
    assert queue.cancel_many([*ids, ids[3], "unknown"], reason="enough", note=noted.extend, now=NOW) == 255
    assert sorted(noted) == sorted(ids[1:])
    assert queue.cancel_many(ids, note=noted.extend, now=NOW) == 0
    assert len(noted) == 255
    assert queue.history(ids[1])[-1].error == "enough"
    assert queue.cancel_many([], now=NOW) == 0
    with pytest.raises(TaskValidationError, match="list of task ids"):
        queue.cancel_many("abc", now=NOW)


def test_canceling_a_run_reports_each_task_that_it_counts(queue: FairQueue) -> None:
    noted: list[str] = []
    parent = task("ann", task_id="parent")
    children = [task("ann", depends_on=["parent"]) for _ in range(3)]
    queue.push_graph([parent, *children], "r", now=NOW)
    assert queue.cancel_run("r", note=noted.extend, now=NOW) == 4
    assert sorted(noted) == sorted(["parent", *(child.task_id for child in children)])
    assert queue.cancel_run("r", note=noted.extend, now=NOW) == 0
    assert len(noted) == 4


def test_canceling_a_large_run_reports_each_task_once(queue: FairQueue) -> None:
    """More than fit in one call: what depends on a slice's tasks may go with them, and is of the run as well."""
    noted: list[str] = []
    tasks = [task("ann", task_id=f"{1200 - number:04}") for number in range(1200)]
    late = task("ann", task_id="0000", depends_on=["1200"])
    queue.push_graph([*tasks, late], "r", now=NOW)
    assert queue.cancel_run("r", note=noted.extend, now=NOW) == 1201
    assert sorted(noted) == sorted(task.task_id for task in [*tasks, late])


def test_a_purge_reports_the_tasks_that_it_cancels(queue: FairQueue) -> None:
    noted: list[str] = []
    ready = push_many(queue, "ann", 5)
    later = push_many(queue, "ann", 2, execute_after=NOW + 60)
    others = push_many(queue, "bob", 2)
    assert queue.user("ann").purge(4, note=noted.extend, now=NOW) == 4
    assert queue.user("ann").purge(note=noted.extend, now=NOW) == 3
    assert sorted(noted) == sorted([*ready, *later])
    assert queue.purge(note=noted.extend, now=NOW) == 2
    assert sorted(noted[7:]) == sorted(others)


def test_many_tasks_are_read_in_one_call(queue: FairQueue) -> None:
    ids = [*push_many(queue, "ann", 250), *push_many(queue, "bob", 1)]
    queue.push(task("cem", task_id="chosen"), now=NOW)
    queue.cancel(ids[3], now=NOW)
    found = queue.get_tasks([*ids, "chosen", "unknown", ids[0]])
    assert list(found) == [*ids, "chosen"]
    assert found[ids[3]].state is TaskState.CANCELED
    assert {found[task_id].user_id for task_id in (ids[250], "chosen")} == {"bob", "cem"}
    assert queue.get_tasks([]) == {}
    with pytest.raises(TaskValidationError, match="a list of task ids"):
        queue.get_tasks("chosen")
