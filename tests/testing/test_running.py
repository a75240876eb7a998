"""Running what was captured: batches as a worker makes them, and `run_tasks` where tasks are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import (
    BatchResult,
    ConfigurationError,
    Discard,
    Retry,
    TaskState,
    TaskUsageError,
    current_task,
    task,
)
from django_fairque.testing import capture_tasks, eager, private_server, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.testing import Capture

pytestmark = pytest.mark.usefixtures("nobody_answers")


@pytest.fixture
def calls() -> list[list[int]]:
    """The items of each call of `index`."""
    return []


@pytest.fixture
def index(calls: list[list[int]]) -> Any:
    @task(name="index", batch=3)
    def index(items: list[int]) -> list[str]:
        calls.append(items)
        for item, context in zip(items, current_task().batch, strict=True):
            context.progress(item, 9)
        return [f"{context.id} {item}" for item, context in zip(items, current_task().batch, strict=True)]

    return index


def many(task: Any, *items: int) -> list[Any]:
    results: list[Any] = task.enqueue_many([((item,), {}) for item in items])
    return results


def test_a_captured_batch_task_gets_a_worker_s_batches(fairque: Capture, index: Any, calls: list[list[int]]) -> None:
    @task(name="other")
    def other() -> None:
        calls.append([])

    results = many(index, 1, 2)
    other.enqueue()
    results += many(index, 3, 4)
    elsewhere = many(index.using(queue="mail"), 5)
    assert fairque.run() == 6
    assert calls == [[1, 2, 3], [], [4], [5]]
    assert [result.result() for result in results] == [f"{result.id} {n}" for n, result in enumerate(results, 1)]
    assert [result.progress.current for result in results + elsewhere] == [1, 2, 3, 4, 5]


def test_an_eager_batch_task_gets_full_batches(index: Any, calls: list[list[int]]) -> None:
    with eager():
        assert [result.state for result in many(index, 1, 2, 3, 4)] == [TaskState.FINISHED] * 4
    assert calls == [[1, 2, 3], [4]]


@pytest.mark.parametrize("is_async", [False, True])
def test_each_item_of_a_captured_batch_has_its_own_outcome(fairque: Capture, is_async: bool) -> None:
    def answer(items: list[str]) -> BatchResult:
        outcomes = BatchResult(items)
        outcomes.ok(items.index("ok"), "boom")
        outcomes.fail(items.index("fail"), "boom")
        outcomes.retry(items.index("retry"))
        outcomes.discard(items.index("discard"))
        return outcomes

    async def answer_later(items: list[str]) -> BatchResult:
        return answer(items)

    function: Any = answer_later if is_async else answer
    mixed: Any = task(name="mixed", batch=10)(function)
    results = mixed.enqueue_many([((item,), {}) for item in ("ok", "fail", "retry", "discard", "forgotten")])
    with pytest.raises(RuntimeError, match="boom"):
        fairque.run()
    states = [TaskState.FINISHED, TaskState.FAILED, TaskState.SCHEDULED, TaskState.CANCELED, TaskState.FAILED]
    assert [result.state for result in results] == states
    assert results[0].result() == "boom"
    assert "says nothing of this item" in results[4].errors[0].error


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (lambda _: None, [TaskState.FINISHED] * 4),
        (
            lambda _: [ValueError("no"), Retry(1), Discard(), 1],
            [TaskState.FAILED, TaskState.SCHEDULED, TaskState.CANCELED, TaskState.FINISHED],
        ),
        (lambda _: [1], [TaskState.FAILED] * 4),
        (lambda _: 1 / 0, [TaskState.FAILED] * 4),
    ],
)
def test_a_captured_batch_accepts_every_kind_of_return_value(
    fairque: Capture, answer: Callable[..., Any], states: list[TaskState]
) -> None:
    whole: Any = task(name="whole", batch=4)(answer)
    results = many(whole, 1, 2, 3, 4)
    assert fairque.run(raise_errors=False) == 4
    assert [result.state for result in results] == states


def test_a_wrong_number_of_batch_outcomes_raises_an_error(fairque: Capture) -> None:
    short: Any = task(name="short", batch=4)(lambda _: [1])
    many(short, 1, 2)
    with pytest.raises(TaskUsageError, match="called with 2 items"):
        fairque.run()


def test_a_captured_batch_item_that_was_canceled_or_run_is_left_out(calls: list[list[int]]) -> None:
    @task(name="note")
    def note(number: int) -> None:
        calls.append([number])

    @task(name="last", batch=2)
    def last(items: list[int]) -> None:
        calls.append(items)
        note.enqueue(5)

    with eager():
        many(last, 1, 2, 3, 4)
    assert sorted(map(tuple, calls)) == [(1, 2), (3, 4), (5,), (5,)]

    with capture_tasks() as capture:

        @task(name="cancels")
        def cancels() -> None:
            capture[1].state = TaskState.CANCELED

        cancels.enqueue()
        note.enqueue(6)
        assert capture.run() == 1


class TestRunTasks:
    """Where tasks are captured there is nothing in a queue: it runs what was captured."""

    def test_run_tasks_runs_one_queue_s_captures(self, fairque: Capture, index: Any, calls: list[list[int]]) -> None:
        many(index, 1, 2)
        many(index.using(queue="mail"), 3)
        assert run_tasks("mail") == 1
        assert run_tasks() == 2
        assert calls == [[3], [1, 2]]
        assert [entry.state for entry in fairque] == [TaskState.FINISHED] * 3

    def test_run_tasks_raises_errors_of_tasks(self, fairque: Capture) -> None:
        @task(name="bad")
        def bad() -> None:
            raise ValueError("no")

        bad.enqueue()
        with pytest.raises(ValueError, match="no"):
            run_tasks()

    def test_running_tasks_of_an_undeclared_queue_raises_an_error(self, fairque: Capture) -> None:
        with pytest.raises(ConfigurationError, match="did you mean 'mail'"):
            run_tasks("mial")

    def test_run_tasks_runs_the_tasks_of_a_private_server(self, index: Any, calls: list[list[int]]) -> None:
        @task(name="sends")
        def sends() -> None:
            many(index, 1)

        with private_server():
            sends.enqueue()
            with capture_tasks() as capture:
                assert run_tasks() == 1
                assert [entry.args for entry in capture] == [[1]]
        assert calls == []
