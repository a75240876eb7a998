"""``max_attempts`` and ``backoff(error, task_result)``, as Django's proposal for retries names them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django
import pytest

from django_fairque import Retry, SoftTimeLimitExceeded
from django_fairque.backends import task as typed_task
from django_fairque.backends.compat import InvalidTask, TaskResultStatus, default_task_backend, task
from django_fairque.backends.running import ResultBackoff
from django_fairque.tasks import registry
from django_fairque.testing import run_tasks
from tests.fixture_types import FairQueue, Settings
from tests.leases import pop

from .conftest import Configure, run

takes_options = pytest.mark.skipif(
    django.VERSION[:2] == (6, 0), reason="the decorator of Django 6.0 takes no options of backends"
)
PATH = "tests.backends.test_retries"
calls: list[tuple[str, int, str, list[str]]] = []
"""The arguments with which the backoff function was called: the error, and of the result attempts, status and errors."""
answers: list[float | timedelta | None] = []
"""The values that the backoff function returns."""


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without calls, and without declarations of other tests: only the first declaration of a function counts."""
    calls.clear()
    answers.clear()
    others = {name: definition for name, definition in registry._tasks.items() if not name.startswith(PATH)}
    monkeypatch.setattr(registry, "_tasks", others)


def pause(error: BaseException, task_result: Any) -> float | timedelta | None:
    errors = [found.exception_class_path for found in task_result.errors]
    calls.append((str(error), task_result.attempts, task_result.status.value, errors))
    return answers.pop(0) if answers else 0


def fail(reason: str) -> None:
    raise LookupError(reason)


async def fail_in_a_coroutine(reason: str) -> None:
    await asyncio.sleep(0)
    raise LookupError(reason)


@pytest.mark.parametrize("function", [fail, fail_in_a_coroutine])
@pytest.mark.parametrize("backoff", [pause, f"{PATH}.pause"])
def test_the_backoff_function_gets_the_error_and_the_result(
    queue: FairQueue, configure: Configure, function: Callable[..., Any], backoff: Any
) -> None:
    configure(MAX_ATTEMPTS=3, BACKOFF=backoff)
    result = run(task(function).enqueue("broken"), 3)
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
    one = "builtins.LookupError"
    assert calls == [("broken", attempt, "FAILED", [one] * attempt) for attempt in (1, 2, 3)]


def test_the_backoff_function_ends_the_retries_or_delays_them(queue: FairQueue, configure: Configure) -> None:
    configure(MAX_ATTEMPTS=10, BACKOFF=pause)
    answers.extend([0, None])
    assert run(task(fail).enqueue("broken"), 2).status is TaskResultStatus.FAILED
    answers.append(timedelta(hours=1))
    waiting = run(task(fail).enqueue("broken"), 1)
    due = queue.get_task(waiting.id).execute_after
    assert due is not None
    assert due - queue.get_task(waiting.id).created_at == pytest.approx(3600, abs=10)


def test_a_retry_that_the_task_requests_does_not_call_the_backoff_function(
    queue: FairQueue, configure: Configure
) -> None:
    configure(MAX_ATTEMPTS=2, BACKOFF=pause)
    result = task(again).enqueue()
    assert run_tasks() == 1
    result.refresh()
    assert (result.status, calls) == (TaskResultStatus.READY, [])


def again() -> None:
    raise Retry(delay=600)


def test_the_backoff_function_gets_a_result_if_the_attempt_was_ended_from_outside(queue: FairQueue) -> None:
    task(fail).enqueue("broken")
    answers.append(5)
    assert ResultBackoff(pause)(pop(queue), SoftTimeLimitExceeded("too long")) == 5
    assert calls == [("too long", 1, "FAILED", ["django_fairque.tasks.errors.SoftTimeLimitExceeded"])]


def test_attempts_and_backoff_may_be_set_outside_of_options(queue: FairQueue, settings: Settings) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "MAX_ATTEMPTS": 2, "BACKOFF": pause}}
    assert run(task(fail).enqueue("broken")).attempts == 2
    assert len(calls) == 2


@takes_options
def test_a_declaration_can_set_its_number_of_attempts_and_its_backoff(queue: FairQueue, configure: Configure) -> None:
    configure(MAX_ATTEMPTS=5, TASK_OPTIONS={f"{PATH}.fail_in_a_coroutine": {"MAX_ATTEMPTS": 1}})
    declared = typed_task(max_attempts=2, backoff=pause)(fail)
    assert run(declared.using(priority=5).enqueue("broken"), 2).attempts == 2
    assert [attempts for _, attempts, *_ in calls] == [1, 2]
    overridden = typed_task(max_attempts=4)(fail_in_a_coroutine)
    assert run(overridden.enqueue("broken"), 1).attempts == 1


@takes_options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 1001, got 0"),
        ({"max_attempts": True}, "got True"),
        ({"backoff": 5}, "backoff must be a callable of .error, task_result., got 5"),
    ],
)
def test_a_wrong_declaration_is_refused(queue: FairQueue, options: dict[str, Any], words: str) -> None:
    django_task: Any = task
    with pytest.raises(InvalidTask, match=words):
        django_task(**options)(fail)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"MAX_ATTEMPTS": 0}, "MAX_ATTEMPTS must be a whole number from 1 to 1001, got 0"),
        ({"MAX_ATTEMPTS": 2, "MAX_RETRIES": 1}, "MAX_ATTEMPTS and MAX_RETRIES say the same thing in two ways"),
        ({"BACKOFF": "nowhere.pause"}, "or its dotted path; 'nowhere.pause' can't be imported"),
        ({"BACKOFF": f"{PATH}.PATH"}, "or its dotted path; '.*PATH' is 'tests"),
    ],
)
def test_the_check_finds_wrong_options(
    queue: FairQueue, configure: Configure, options: dict[str, Any], words: str
) -> None:
    configure(**options)
    (message,) = default_task_backend.check()
    assert message.id == "fairque.E040"
    assert re.search(words, str(message.msg))
