"""Workers of this queue run tasks of django.tasks and store their results."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_fairque import SoftTimeLimitExceeded, TaskCanceledError
from django_fairque.backends.compat import TaskResultStatus
from django_fairque.conf import aclose_queues
from django_fairque.testing import run_tasks
from tests.fixture_types import FairQueue, Settings
from tests.leases import pop

from .conftest import Configure, run
from .project import tasks


@pytest.mark.parametrize("work", [tasks.add, tasks.add_async], ids=lambda work: work.name)
def test_a_task_runs_and_its_result_is_successful(queue: FairQueue, work: Any) -> None:
    result = work.enqueue(2, b=3)
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 0, False)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    run(result, 1)
    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, 5, [])
    assert result.attempts == 1
    assert result.enqueued_at <= result.last_attempted_at <= result.finished_at
    assert result.started_at == result.last_attempted_at


async def test_coroutines_enqueue_and_read_results(queue: FairQueue) -> None:
    result: Any = await tasks.add_async.aenqueue(2, b=3)
    assert (await tasks.add_async.aget_result(result.id)) == result
    lease = pop(queue)
    await result.arefresh()
    assert (result.status, result.worker_ids) == (TaskResultStatus.RUNNING, ["w"])
    queue.finish(lease, 5)
    await result.arefresh()
    assert result.return_value == 5
    await aclose_queues()


@pytest.mark.parametrize("work", [tasks.fail, tasks.fail_async], ids=lambda work: work.name)
@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("ValueError", "builtins.ValueError", ValueError),
        ("OwnError", "tests.backends.project.tasks.OwnError", tasks.OwnError),
        ("SystemExit", "builtins.SystemExit", SystemExit),
        ("Discard", "django_fairque.tasks.errors.Discard", None),
    ],
)
def test_a_task_that_raises_has_failed(queue: FairQueue, work: Any, name: str, path: str, kind: Any) -> None:
    result = run(work.enqueue(name))
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    (error,) = result.errors
    assert error.exception_class_path == path
    assert kind is None or error.exception_class is kind
    assert ("raise error" if kind else "not wanted") in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


@pytest.mark.parametrize("work", [tasks.linger, tasks.wait_for_ever], ids=lambda work: work.name)
def test_the_time_limit_is_that_of_the_queue(queue: FairQueue, settings: Settings, work: Any) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"default": {"DEFAULT_TASK_TIMEOUT": 0.2}, "mail": {}}}
    result = run(work.enqueue(), 1)
    assert [error.exception_class for error in result.errors] == [SoftTimeLimitExceeded]
    assert result.finished_at - result.started_at < timedelta(seconds=60)


def test_a_result_that_is_no_json_is_a_failure(queue: FairQueue) -> None:
    result = run(tasks.unserializable.enqueue())
    assert [error.exception_class for error in result.errors] == [TypeError]


@pytest.mark.parametrize("work", [tasks.describe, tasks.describe_async], ids=lambda work: work.name)
def test_tasks_are_retried_only_if_the_options_allow_retries(queue: FairQueue, configure: Configure, work: Any) -> None:
    once = work.enqueue(2)
    configure(MAX_RETRIES=1)
    twice = work.enqueue(2)
    run_tasks()
    once.refresh()
    twice.refresh()
    assert (once.status, once.attempts) == (TaskResultStatus.FAILED, 1)
    assert (twice.status, twice.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert [error.exception_class for error in twice.errors] == [LookupError]


def test_the_context_has_the_number_of_earlier_attempts(queue: FairQueue, configure: Configure) -> None:
    configure(MAX_RETRIES=5)
    result = run(tasks.describe.using(priority=33).enqueue(3))
    shown = {name: value for name, value in result.return_value.items() if name != "pid"}
    assert shown == {
        "id": result.id,
        "attempt": 3,
        "status": "RUNNING",
        "errors": ["builtins.LookupError"] * 2,
        "workers": 3,
        "own_attempt": 3,
        "priority": 33,
    }


def test_a_retry_that_the_task_requested_is_not_recorded_as_an_error(queue: FairQueue) -> None:
    result = run(tasks.fail.enqueue("Retry"))
    assert (result.status, result.errors, result.attempts) == (TaskResultStatus.READY, [], 1)


def test_the_context_counts_retries_that_the_task_requested(queue: FairQueue) -> None:
    result = run(tasks.ask_again.enqueue(3))
    assert (result.return_value, result.attempts, result.errors) == (3, 3, [])


def test_a_task_that_was_canceled_has_failed(queue: FairQueue) -> None:
    result = tasks.add.enqueue(1)
    queue.cancel(result.id, reason="changed our minds")
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 0)
    (error,) = result.errors
    assert error.exception_class is TaskCanceledError
    assert "changed our minds" in error.traceback


def test_the_death_of_a_worker_is_recorded_as_an_attempt_with_an_error(queue: FairQueue) -> None:
    result = tasks.add.enqueue(1)
    queue.sweep(now=pop(queue, "w1", now=1000.0).expires_at + 1)
    result.refresh()
    assert (result.status, result.worker_ids, len(result.errors)) == (TaskResultStatus.READY, ["w1"], 1)
    run(result)
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.SUCCESSFUL, 2, 1)


@pytest.mark.parametrize(
    ("args", "kwargs", "seen"),
    [
        (((1, 2), b"text"), {"a": {"b": (3,)}}, [[[1, 2], "text"], {"a": {"b": [3]}}]),
        ((None, True, 1.5), {}, [[None, True, 1.5], {}]),
    ],
)
def test_arguments_arrive_as_json(queue: FairQueue, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Any) -> None:
    result = tasks.echo.enqueue(*args, **kwargs)
    assert [result.args, result.kwargs] == seen
    run(result)
    assert result.return_value == [result.args, result.kwargs] == seen


def test_a_worker_runs_tasks_of_both_interfaces(queue: FairQueue) -> None:
    first, second = tasks.ordinary.enqueue("ann", 1), tasks.add.enqueue(1, 1)
    assert run_tasks() == 2
    second.refresh()
    assert (first.result(), second.return_value) == ("ann 1", 2)
    assert queue.check_invariants() == []
