"""Tasks that are declared with an id and with the tasks that they depend on."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque import TaskState, TaskUsageError, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker import Worker

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def declare(task_id: str, depends_on: Any = ()) -> Any:
    @task(name=task_id, task_id=task_id, depends_on=depends_on)
    def run() -> str:
        RAN.append(task_id)
        return task_id

    return run


@pytest.mark.parametrize(
    ("graph", "order"),
    [
        ({"extract": [], "transform": ["extract"], "load": ["transform"]}, ["extract", "transform", "load"]),
        ({"first": [], "b1": ["first"], "b2": ["first"], "last": ["b1", "b2"]}, ["first", "b1", "b2", "last"]),
    ],
    ids=["pipeline", "fan out and in"],
)
def test_declared_tasks_run_in_the_order_of_their_dependencies(
    queue: FairQueue, graph: dict[str, list[str]], order: list[str]
) -> None:
    """The first examples of the first design."""
    for name, depends_on in graph.items():
        assert declare(name, depends_on).enqueue().id == name
        expected = TaskState.DEFERRED if depends_on else TaskState.QUEUED
        assert (queue.get_task(name).state, set(queue.get_task(name).depends_on)) == (expected, set(depends_on))
    Worker(["default"], burst=True).run(handle_signals=False)
    assert [RAN[0], *sorted(RAN[1:-1]), RAN[-1]] == order


def test_a_declared_id_is_an_idempotency_key_and_one_call_can_change_it(queue: FairQueue) -> None:
    first, second = declare("first"), declare("second", "first")
    assert first.enqueue().id == first.enqueue().id == "first"
    assert second.using(task_id="other", depends_on=()).enqueue().id == "other"
    assert queue.get_task("other").state is TaskState.QUEUED
    with pytest.raises(TaskUsageError, match="2 tasks can't share one task_id"):
        first.enqueue_many([((), {}), ((), {})])


def test_a_declared_dependency_joins_those_of_a_pipeline(queue: FairQueue) -> None:
    first, second, third = declare("first"), declare("second"), declare("third", ["first"])
    first.enqueue()
    (second.s() >> third.s()).enqueue()
    assert set(queue.get_task("third").depends_on) == {"first", "second"}


def do_nothing() -> None: ...


@pytest.mark.parametrize("options", [{"task_id": ""}, {"task_id": 5}, {"depends_on": [5]}])
def test_an_invalid_dependency_is_refused_at_the_import(options: dict[str, Any]) -> None:
    declare_task: Any = task
    with pytest.raises(TaskUsageError, match="@task on "):
        declare_task(**options)(do_nothing)
