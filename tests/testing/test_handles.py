"""Tests that the handles of captured tasks answer every call without a server."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from django_fairque import (
    Discard,
    FairQueueError,
    Priority,
    Retry,
    Task,
    TaskCanceledError,
    TaskFailedError,
    TaskNotFinishedError,
    TaskNotFoundError,
    TaskResult,
    TaskState,
    TaskWaitTimeoutError,
    current_task,
    task,
)
from django_fairque.engine.inspection.task_lookup import Progress, RunView
from django_fairque.engine.model.records import Attempt
from django_fairque.engine.users.start_estimates import StartEstimate
from django_fairque.tasks.pipelines import PipelineResult
from django_fairque.testing import capture_tasks, eager, private_server, run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from django_fairque.testing import Capture

pytestmark = pytest.mark.usefixtures("nobody_answers")

ARGUMENTS: dict[str, tuple[Any, ...]] = {"record_task_id": ("another",), "wait": (0.001,), "await_": (0.001,)}
NOT_QUEUED = StartEstimate(None, None, "not_queued")
TWINS = {"wait": "await_"}
"""The asynchronous names that are not an "a" before the synchronous one."""
ENDS: dict[str, Exception | None] = {
    "returns": None,
    "raises": ValueError("no"),
    "retries": Retry(5, "not yet"),
    "discards": Discard("unwanted"),
}


@pytest.fixture
def work() -> Any:
    @task(name="work")
    def work(how: str) -> str:
        current_task().progress(1, 2, "half")
        if error := ENDS[how]:
            raise error
        return how

    return work


async def awaited(value: Coroutine[Any, Any, Any]) -> Any:
    return await value


def answer(handle: Any, name: str) -> Any:
    """Return the comparable value of a handle's public name, or the class of the error that it raises."""
    try:
        value = getattr(handle, name)
        if callable(value):
            value = value(*ARGUMENTS.get(name, ()))
        if hasattr(value, "__await__"):
            value = async_to_sync(awaited)(value)
    except FairQueueError as error:
        return type(error)
    return "itself" if value is handle else comparable(value)


def comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, TaskResult):
        return value.id
    if isinstance(value, Task):
        return (value.task_id, value.state)
    if isinstance(value, Attempt):
        return (value.kind, value.error)
    if isinstance(value, RunView):
        return (value.run_id, value.state)
    return value


def answers(make: Callable[[], Any]) -> dict[str, Any]:
    """By each public name there is, what a new handle says."""
    return {name: answer(make(), name) for name in dir(make()) if not name.startswith("_")}


def expected(always: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Coroutines say the same."""
    return {**always, **values, **{TWINS.get(name, f"a{name}"): value for name, value in values.items()}}


def of_a_task(state: TaskState | None, **values: Any) -> dict[str, Any]:
    values = {
        "state": state,
        "progress": None,
        "position": None,
        "starts_in": NOT_QUEUED,
        "errors": [],
        "refresh": "itself",
        **values,
    }
    values.setdefault("wait", values["result"])
    seen = None if state is None else ("w", state)
    return expected({"id": "w", "queue": "mail", "is_waiting": False, "record_task_id": None, "task": seen}, **values)


HALF = Progress(1, 2, "half")
ENDED = {
    "returns": of_a_task(TaskState.FINISHED, result="returns", progress=HALF, cancel=False),
    "raises": of_a_task(
        TaskState.FAILED, result=TaskFailedError, progress=HALF, cancel=False, errors=[("failed", "ValueError: no")]
    ),
    "retries": of_a_task(
        TaskState.SCHEDULED,
        result=TaskNotFinishedError,
        wait=TaskWaitTimeoutError,
        progress=HALF,
        cancel=True,
        errors=[("failed", "not yet")],
    ),
    "discards": of_a_task(
        TaskState.CANCELED, result=TaskCanceledError, progress=HALF, cancel=False, errors=[("discarded", "unwanted")]
    ),
}


def when(result: TaskResult) -> list[bool]:
    """Which moments, and whether a worker, its record tells of."""
    known = result.refresh().task
    assert known is not None
    return [known.started_at is not None, known.ended_at is not None, bool(known.worker)]


def test_a_captured_task_has_the_same_times_as_a_task_in_a_queue(work: Any) -> None:
    def end_times(run: Callable[[], Any]) -> list[list[bool]]:
        results = [work.using(max_retries=0).enqueue(how) for how in (*ENDS, "returns", "returns")]
        results[-1].cancel()
        before = [when(result) for result in results]
        results[-2].cancel()
        run()
        return before + [when(result) for result in results]

    with private_server():
        expected = end_times(run_tasks)
    with capture_tasks() as capture:
        assert end_times(lambda: capture.run(raise_errors=False)) == expected


@pytest.mark.parametrize("how", ENDS)
def test_a_handle_of_a_captured_task_that_has_run_has_its_result(work: Any, how: str) -> None:
    def make() -> TaskResult:
        with capture_tasks() as capture:
            result: TaskResult = work.using(queue="mail", task_id="w").enqueue(how)
            capture.run(raise_errors=False)
        return result

    assert answers(make) == ENDED[how]


@pytest.mark.parametrize("how", ENDS)
def test_a_handle_of_an_eager_task_can_be_made_from_its_id(work: Any, how: str) -> None:
    def make() -> TaskResult:
        with eager():
            with contextlib.suppress(ValueError):
                work.using(queue="mail", task_id="w").enqueue(how)
            return TaskResult("w", "mail")

    assert answers(make) == ENDED[how]


def test_a_handle_of_a_captured_task_that_has_not_run_raises_advice(work: Any) -> None:
    def make() -> TaskResult:
        with capture_tasks():
            for user, priority in (("acme", 3), ("acme", 2), ("other", 3)):
                work.using(queue="mail", user_id=user, priority=Priority(priority)).enqueue("returns")
            work.using(user_id="acme").enqueue("returns")  # the task is in another queue
            result: TaskResult = work.using(queue="mail", task_id="w", user_id="acme").enqueue("returns")
            for priority in (3, 4):
                work.using(queue="mail", user_id="acme", priority=Priority(priority)).enqueue("returns")
        return result

    assert answers(make) == of_a_task(
        TaskState.QUEUED,
        result=TaskNotFinishedError,
        wait=TaskWaitTimeoutError,
        cancel=True,
        position=2,
        starts_in=replace(NOT_QUEUED, reason="no_worker"),
    )


def test_a_handle_of_a_canceled_captured_task_raises_task_canceled(work: Any) -> None:
    def make() -> TaskResult:
        with capture_tasks():
            result: TaskResult = work.using(queue="mail", task_id="w").enqueue("returns")
            result.cancel()
        return result

    assert answers(make) == of_a_task(
        TaskState.CANCELED, result=TaskCanceledError, cancel=False, errors=[("canceled", "")]
    )


@pytest.mark.django_db(transaction=True)
def test_a_handle_of_a_task_that_was_rolled_back_finds_no_task(work: Any) -> None:
    def make() -> TaskResult:
        with capture_tasks(), contextlib.suppress(ZeroDivisionError), transaction.atomic():
            result: TaskResult = work.using(queue="mail", task_id="w").enqueue("returns")
            raise ZeroDivisionError
        return result

    unknown = {
        "result": TaskNotFoundError,
        "cancel": TaskNotFoundError,
        "position": TaskNotFoundError,
        "starts_in": TaskNotFoundError,
    }
    assert answers(make) == of_a_task(None, **unknown)


def test_a_handle_of_an_unknown_id_finds_no_task() -> None:
    def make() -> TaskResult:
        with capture_tasks():
            return TaskResult("w", "mail")

    unknown = {
        "result": TaskNotFoundError,
        "cancel": TaskNotFoundError,
        "position": TaskNotFoundError,
        "starts_in": TaskNotFoundError,
    }
    assert answers(make) == of_a_task(None, **unknown)


def of_a_run(state: str, **values: Any) -> dict[str, Any]:
    values = {"state": state, "view": ("r", state), "wait": state, **values}
    return expected({"id": "r", "queue": "mail", "results": ["first", "second"]}, **values)


def sent(work: Any, how: str) -> PipelineResult:
    first, second = (work.using(queue="mail", task_id=name) for name in ("first", "second"))
    run: PipelineResult = (first.s(how) >> second.s("returns")).enqueue(run_id="r")
    return run


@pytest.mark.parametrize(
    ("how", "state", "canceled"), [("returns", "finished", 0), ("raises", "failed", 1), ("discards", "canceled", 0)]
)
def test_a_handle_of_a_captured_pipeline_has_its_state(work: Any, how: str, state: str, canceled: int) -> None:
    def make() -> PipelineResult:
        with capture_tasks() as capture:
            run = sent(work, how)
            capture.run(raise_errors=False)
        return run

    assert answers(make) == of_a_run(state, cancel=canceled)


def test_a_handle_of_an_eager_pipeline_has_its_results(work: Any) -> None:
    def make() -> PipelineResult:
        with eager():
            return sent(work, "returns")

    assert answers(make) == of_a_run("finished", cancel=0)


def test_a_handle_of_a_captured_pipeline_that_has_not_run_raises_advice(work: Any) -> None:
    def make() -> PipelineResult:
        with capture_tasks():
            return sent(work, "returns")

    assert answers(make) == of_a_run("running", wait=TaskWaitTimeoutError, cancel=2)


def test_a_canceled_pipeline_does_not_run(fairque: Capture, work: Any) -> None:
    run = sent(work, "returns")
    assert run.cancel() == 2
    assert run.state == "canceled"
    assert fairque.run() == len(fairque) == 0


def test_a_captured_task_that_cancels_itself_stays_canceled(fairque: Capture) -> None:
    @task(name="gives_up")
    def gives_up() -> None:
        assert TaskResult(current_task().id).cancel()
        raise ValueError("no")

    result = gives_up.enqueue()
    assert fairque.run() == 1
    assert result.state is TaskState.CANCELED


def test_a_captured_step_waits_for_its_predecessor(fairque: Capture, work: Any) -> None:
    first, second = sent(work, "returns").results
    assert (first.state, second.state, second.position) == (TaskState.QUEUED, TaskState.DEFERRED, None)
    assert first.cancel()
    assert second.state is TaskState.CANCELED  # a queue cancels dependents as well
    assert fairque.run() == 0


@pytest.mark.parametrize(
    ("policy", "state"), [("wait", TaskState.DEFERRED), ("cancel", TaskState.CANCELED), ("run", TaskState.FINISHED)]
)
def test_a_failed_step_follows_the_policy_of_its_successor(
    fairque: Capture, work: Any, policy: Any, state: TaskState
) -> None:
    failing = work.enqueue("raises")
    after = work.using(depends_on=[failing], on_dependency_failure=policy).enqueue("returns")
    last = work.using(depends_on=[after], on_dependency_failure="run").enqueue("returns")
    fairque.run(raise_errors=False)
    assert after.state is state
    assert last.state is (TaskState.DEFERRED if policy == "wait" else TaskState.FINISHED)


def test_a_failed_captured_task_has_the_text_of_its_error(fairque: Capture, work: Any) -> None:
    result = work.enqueue("raises")
    fairque.run(raise_errors=False)
    with pytest.raises(TaskFailedError, match="ValueError: no"):
        result.result()
    (attempt,) = result.errors
    assert "raise error" in attempt.traceback
    assert fairque[0].attempts == [attempt]


@pytest.fixture(params=["task", "pipeline"])
def unended(request: pytest.FixtureRequest, work: Any) -> Iterator[Any]:
    with capture_tasks():
        yield work.enqueue("returns") if request.param == "task" else sent(work, "returns")


def test_waiting_for_a_captured_task_that_nobody_runs_raises_an_error(unended: Any) -> None:
    with pytest.raises(
        TaskWaitTimeoutError, match=r"has not ended, and nothing runs it while tasks are captured.*run\(\)"
    ):
        unended.wait()


async def test_awaiting_a_captured_task_that_nobody_runs_raises_an_error(unended: Any) -> None:
    with pytest.raises(TaskWaitTimeoutError, match=r"nothing runs it while tasks are captured.*run\(\)"):
        await unended.await_()


async def test_a_coroutine_can_await_a_captured_task_that_another_thread_runs(fairque: Capture, work: Any) -> None:
    import asyncio

    result = await work.aenqueue("returns")
    waiting = asyncio.create_task(result.await_(timeout=30))
    await sync_to_async(fairque.run)()
    assert await waiting == "returns"


def test_handles_work_after_their_capture_has_ended(work: Any) -> None:
    with capture_tasks() as capture:
        result, run = work.enqueue("returns"), sent(work, "returns")
        capture.clear()
        with capture_tasks():
            again, run_again = TaskResult(result.id), PipelineResult(run.id, run.queue, {})
    assert result.state is again.state is TaskState.QUEUED
    assert run.state == run_again.state == "running"
