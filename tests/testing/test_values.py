"""Tests that captured tasks store values like a queue, and that values that a worker refuses fail as well."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import BatchResult, TaskFailedError, TaskSerializationError, TaskState, current_task, group, task
from django_fairque.testing import capture_tasks, eager, private_server, run_tasks

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque import TaskResult
    from django_fairque.testing import Capture

pytestmark = pytest.mark.usefixtures("nobody_answers")

REFUSED: dict[str, Any] = {
    "a moment": datetime(2020, 1, 1, tzinfo=timezone.utc),
    "another key": {1: 2},
    "no number": [float("nan")],
    "too large": "x" * 300_000,
}
CHANGED: dict[str, Any] = {"pair": (1, (2,)), "nested": {"at": (1,)}, "text": "ü", "nothing": None}


@pytest.fixture
def returning() -> Any:
    @task(name="returning", max_retries=3)
    def returning(which: str) -> Any:
        return {**REFUSED, **CHANGED}[which]

    return returning


@pytest.fixture
def passing() -> Any:
    """Passes a value on, and returns what comes back of it."""

    @task(name="passing", max_retries=0)
    def passing(which: str) -> Any:
        values = current_task().xcom
        values.push("one", {**REFUSED, **CHANGED}[which])
        values.push_many({"two": {**REFUSED, **CHANGED}[which]})
        return [values.pull("one"), values.items(), values.keys()]

    return passing


def end_of(result: TaskResult) -> list[Any]:
    """Return the state, the outcome and the errors of a task, in a form that can be compared."""
    try:
        outcomes = result.result()
    except TaskFailedError as error:
        outcomes = error.error
    return [result.state, outcomes, [(error.kind, error.error) for error in result.errors]]


@pytest.mark.parametrize("which", [*REFUSED, *CHANGED])
def test_captured_tasks_store_values_like_a_worker(returning: Any, passing: Any, which: str) -> None:
    with private_server():
        real = [function.enqueue(which) for function in (returning, passing)]
        run_tasks()
        expected = [end_of(result) for result in real]
    with capture_tasks() as capture:
        captured = [function.enqueue(which) for function in (returning, passing)]
        assert capture.run(raise_errors=False) == 2
    assert [end_of(result) for result in captured] == expected
    assert {state for state, *_ in expected} == {TaskState.FAILED if which in REFUSED else TaskState.FINISHED}


def test_a_result_that_can_not_be_stored_raises_an_error(fairque: Capture, returning: Any) -> None:
    returning.enqueue("a moment")
    with pytest.raises(TaskSerializationError, match="result is not JSON"):
        fairque.run()
    with eager(), pytest.raises(TaskSerializationError, match=r"result takes 300,002 bytes, the limit is 262,144"):
        returning.enqueue("too large")


def test_the_size_limit_of_a_result_is_the_queue_s(fairque: Capture, passing: Any, settings: Settings) -> None:
    settings.FAIRQUE = {"QUEUES": {"default": {"MAX_PAYLOAD_BYTES": 400_000}}}
    assert passing.enqueue("nothing").state is TaskState.QUEUED
    result = passing.enqueue("too large")
    with pytest.raises(TaskSerializationError, match=r"result takes 900,0.. bytes, the limit is 400,000"):
        fairque.run()
    assert result.state is TaskState.FAILED


def test_each_dependent_gets_its_own_copy_of_a_captured_result(fairque: Capture, returning: Any) -> None:
    seen: list[Any] = []

    @task(name="following")
    def following() -> None:
        found = current_task().parent_result()
        seen.append([*found])
        found.append("mine")

    first = returning.s("pair")
    run = (first >> group([following.s(), following.s()])).enqueue()
    assert fairque.run() == 3
    assert seen == [[1, [2]]] * 2
    assert run[first].result() == [1, [2]]


@pytest.mark.parametrize("kind", [list, BatchResult])
def test_each_item_of_a_captured_batch_can_return_any_stored_value(fairque: Capture, kind: type) -> None:
    @task(name="batch", batch=2)
    def batch(items: list[str]) -> Any:
        values = [{**REFUSED, **CHANGED}[item] for item in items]
        if kind is list:
            return values
        outcomes = BatchResult(items)
        for index, value in enumerate(values):
            outcomes.ok(index, value)
        return outcomes

    results = batch.enqueue_many([(("pair",), {}), (("another key",), {})])
    fairque.run(raise_errors=False)
    assert results[0].result() == [1, [2]]
    assert end_of(results[1])[0] is TaskState.FAILED


def test_a_passed_value_does_not_change_with_the_original(fairque: Capture) -> None:
    @task(name="changing")
    def changing() -> Any:
        values, value = current_task().xcom, [1]
        values.push("key", value)
        value.append(2)
        values.pull("key").append(3)
        return values.pull("key")

    result = changing.enqueue()
    fairque.run()
    assert result.result() == [1]
    assert list(fairque.xcom.values()) == [{"key": [1]}]


def test_an_invalid_key_of_a_passed_value_is_refused(fairque: Capture) -> None:
    @task(name="odd")
    def odd() -> None:
        current_task().xcom.push("", 1)

    odd.enqueue()
    with pytest.raises(ValueError, match="an xcom key must be"):
        fairque.run()
