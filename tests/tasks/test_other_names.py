"""Tests that errors about names of Celery or `django.tasks` contain our name. And tests of the text of a result."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from django.db import transaction

from django_fairque import Priority, TaskResult, TaskValidationError, current_task, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.tasks.execution import Services

from .helpers import run_next


def pay(order: int, note: str = "") -> str:
    return f"{order}{note}"


@pytest.fixture
def paid(queue: FairQueue) -> Any:
    return task(name="pay")(pay)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("delay", r"use enqueue\(…\)"),
        ("apply_async", r"with options using\(delay=…, priority=…\)\.enqueue\(…\)"),
        ("retry", r"raise Retry\(delay=…\)"),
        ("unheard", "has no attribute 'unheard'$"),
    ],
)
def test_an_attribute_of_celery_s_tasks_gets_a_hint_with_the_right_name(paid: Any, name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=rf"'TaskDefinition' object has no attribute '{name}'.*{ours}|{ours}"):
        getattr(paid, name)
    assert not hasattr(paid, name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("get", r"wait\(timeout\)"), ("task_id", "use id")],
)
def test_an_attribute_of_celery_s_results_gets_a_hint_with_the_right_name(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=rf"'TaskResult' object has no attribute '{name}'; use {ours}|{ours}"):
        getattr(TaskResult("id"), name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("apply_async", r"use enqueue\(…\)"), ("set", r"use using\(…\) of a step"), ("unheard", "'unheard'$")],
)
def test_an_attribute_of_celery_s_signatures_names_ours(paid: Any, name: str, ours: str) -> None:
    for signature in (paid.s(1), paid.s(1) >> paid.s(2)):
        with pytest.raises(AttributeError, match=ours):
            getattr(signature, name)


def test_an_attribute_of_celery_s_chains_and_requests_names_ours(paid: Any) -> None:
    with pytest.raises(AttributeError, match=r"'PipelineResult' .* 'get'; use wait\(timeout\), .* run\[step\]"):
        (paid.s(1) >> paid.s(2)).enqueue().get()
    with pytest.raises(AttributeError, match=r"'TaskContext' .* 'retry'; raise Retry\(delay=…\)"):
        current_task().retry()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        ({"countdown": 5}, "unknown option 'countdown'; it is called 'delay' here"),
        ({"priority": "high"}, r"priority must be an integer .* got 'high'; write Priority\.HIGH"),
        ({"priority": "urgent"}, "got 'urgent'$"),
        ({"retry_on": OSError}, r"an option of the declaration, not of one call: write @task\(retry_on=…\)"),
        ({"expires": 5}, r"write @task\(expires=…\) or \.using\(expires_at=timedelta\(…\)\)"),
    ],
)
def test_an_option_of_another_name_is_corrected_in_a_call(paid: Any, options: dict[str, Any], ours: str) -> None:
    with pytest.raises(TaskUsageError, match=rf"(?m)^pay\.using\(\): .*{ours}|^pay\.using\(\): {ours}"):
        paid.using(**options)


@pytest.mark.parametrize(
    ("options", "ours"),
    [
        (
            {"user_id": "x"},
            r"'user_id' is an option of one call, not of the declaration: write \.using\(user_id=…\)\.enqueue",
        ),
        ({"eta": 5}, r"'execute_after' is an option of one call"),
        ({"countdown": 5}, "it is called 'delay' here"),
        ({"autoretry_for": OSError}, "it is called 'retry_on' here"),
        ({"bind": True}, r"unknown option 'bind'; leave it out: current_task\(\) in the task takes the place of self"),
        ({"retry_kwargs": {}}, "it is called 'max_retries' here"),
        ({"unheard": True}, "unknown option 'unheard'; expected one of"),
    ],
)
def test_an_option_of_another_name_is_corrected_in_a_declaration(options: dict[str, Any], ours: str) -> None:
    declare: Any = task
    with pytest.raises(TaskUsageError, match=ours):
        declare(**options)(pay)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"countdown": 5}, r"countdown is no argument of the task: write \.using\(delay=…\)\.enqueue\(…\)"),
        ({"eta": 5}, r"\.using\(execute_after=…\)"),
        ({"other": 5}, r"its arguments are \(order: "),
    ],
)
def test_an_option_among_the_arguments_is_moved_to_using(paid: Any, given: dict[str, Any], ours: str) -> None:
    with pytest.raises(TaskUsageError, match=rf"pay\.enqueue\(\): got an unexpected keyword argument .*{ours}"):
        paid.enqueue(1, **given)


def test_a_priority_that_is_a_number_as_text_has_no_hint() -> None:
    with pytest.raises(TaskValidationError, match=r"(?m)got '3'$"):
        Priority.from_int("3")  # type: ignore[arg-type]


def test_tasks_and_results_can_be_copied(paid: Any) -> None:
    assert copy.copy(paid).name == copy.deepcopy(paid).name == "pay"
    assert pickle.loads(pickle.dumps(TaskResult("id", "mail"))).queue == "mail"


@pytest.mark.django_db(transaction=True)
def test_the_text_of_a_result_has_its_name_and_last_state(queue: FairQueue, services: Services, paid: Any) -> None:
    with transaction.atomic():
        result = paid.enqueue(1)
        assert repr(result) == f"<TaskResult pay {result.id!r}: waits for the commit>"
    assert repr(result) == f"<TaskResult pay {result.id!r}: state not read yet>"
    run_next(queue, services)
    assert repr(result.refresh()) == f"<TaskResult pay {result.id!r}: finished when it was read last>"
    assert repr(TaskResult("x")) == "<TaskResult 'x': state not read yet>"
