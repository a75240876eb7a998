"""Tests of capturing tasks of `django.tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.backends.compat import task
from django_fairque.testing import assert_enqueued

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.testing import Capture

pytestmark = pytest.mark.usefixtures("nobody_answers")


def greet(name: str) -> str:
    if name == "nobody":
        raise ValueError(name)
    return f"hello {name}"


@pytest.fixture
def greeting(settings: Settings) -> Any:
    """A task of Django's: those have to be functions of a module."""
    settings.TASKS = {"default": {"BACKEND": "django_fairque.backends.FairqueBackend", "QUEUES": ["default", "mail"]}}
    return task(greet)


def test_captured_calls_are_found_by_the_task_object(fairque: Capture, greeting: Any) -> None:
    greeting.enqueue("a")
    greeting.using(queue_name="mail").enqueue("b")
    first, second = fairque
    assert assert_enqueued(greeting, args=["a"], count=1) == [first]
    assert fairque.of(greeting.using(priority=5)) == fairque.of(greeting.module_path) == [first, second]
    with pytest.raises(
        AssertionError, match=r"^expected tests\.testing\.test_django_tasks\.greet to be enqueued at least"
    ):
        assert_enqueued(greeting, args=["c"])


@pytest.mark.parametrize("name", ["a", "nobody"])
def test_a_result_of_a_captured_run_has_its_times_and_worker(fairque: Capture, greeting: Any, name: str) -> None:
    result = greeting.enqueue(name)
    assert (result.started_at, result.finished_at, result.worker_ids) == (None, None, [])
    fairque.run(raise_errors=False)
    result.refresh()
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.worker_ids == ["test"]
