"""Tasks that are declared with an id and with the tasks that they depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import TaskState, TaskUsageError, task
from django_fairque.worker import Worker

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

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


def test_a_pipeline_of_declarations_runs_in_its_order(queue: FairQueue) -> None:
    """The first example of the first design: three steps, one after the other."""

    @task(task_id="extract")
    def extract() -> list[int]:
        RAN.append("extract")
        return [1, 2]

    @task(task_id="transform", depends_on=["extract"])
    def transform() -> int:
        RAN.append("transform")
        return 3

    @task(task_id="load", depends_on=["transform"])
    def load() -> None:
        RAN.append("load")

    assert [step.enqueue().id for step in (extract, transform, load)] == ["extract", "transform", "load"]
    assert [queue.get_task(step).state for step in ("extract", "transform", "load")] == [
        TaskState.QUEUED,
        TaskState.DEFERRED,
        TaskState.DEFERRED,
    ]
    Worker(["default"], burst=True).run(handle_signals=False)
    assert RAN == ["extract", "transform", "load"]


def test_declarations_fan_out_and_in(queue: FairQueue) -> None:
    """The second example of the first design: two steps at once between two others."""
    steps = [
        declare("prepare"),
        declare("process_a", ["prepare"]),
        declare("process_b", ["prepare"]),
        declare("combine", ["process_a", "process_b"]),
    ]
    for step in steps:
        step.enqueue()
    assert set(queue.get_task("combine").depends_on) == {"process_a", "process_b"}
    Worker(["default"], burst=True).run(handle_signals=False)
    assert (RAN[0], sorted(RAN[1:3]), RAN[3:]) == ("prepare", ["process_a", "process_b"], ["combine"])


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
def test_mistakes_of_declarations_are_raised_at_the_import(options: dict[str, Any]) -> None:
    declare_task: Any = task
    with pytest.raises(TaskUsageError, match="@task on "):
        declare_task(**options)(do_nothing)
