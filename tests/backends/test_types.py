"""Type checkers know the types of the tasks of `django_fairque.backends.task`: mypy checks this module strictly."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import assert_type

from django_fairque.backends import FairqueTask, task
from django_fairque.backends.compat import TaskContext, TaskResult, TaskResultStatus
from django_fairque.backends.compat import task as django_task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.testing import run_tasks


@task
def total(customer: str, *, amount: int = 1) -> int:
    return amount


@task(queue_name="default", priority=30)
async def send(customer: str) -> str:
    return customer


@task(takes_context=True)
def attempt(context: TaskContext[..., Any], customer: str) -> int:
    return context.attempt


@django_task
def theirs(customer: str) -> str:
    return customer


def test_a_task_has_the_types_of_its_function(queue: FairQueue) -> None:
    result = total.enqueue("acme", amount=3)
    if TYPE_CHECKING:
        assert_type(result.return_value, int)
        total.enqueue(3)  # type: ignore[arg-type]
        send.enqueue()  # type: ignore[call-arg]
        attempt.enqueue("acme", 1)  # type: ignore[call-arg]
    assert run_tasks() == 1
    assert total.get_result(result.id).return_value == 3
    assert total.call("acme") == 1


@pytest.mark.parametrize("user_id", ["ann", 7, uuid.UUID(int=7)])
def test_using_takes_a_user_and_a_time_from_now(queue: FairQueue, user_id: str | int | uuid.UUID) -> None:
    later = total.using(user_id=user_id, run_after=timedelta(hours=1))
    assert later.using(run_after=datetime(2100, 1, 1, tzinfo=timezone.utc)).user_id == str(user_id)
    result = later.enqueue("acme")
    if TYPE_CHECKING:
        assert_type(result.return_value, int)
        total.using(run_after="tomorrow")  # type: ignore[arg-type]
        total.using(user="ann")  # type: ignore[call-arg]
    assert queue.get_task(result.id).user_id == str(user_id)


def test_coroutines_and_tasks_with_a_context_have_the_types_of_their_functions(queue: FairQueue) -> None:
    sent, counted = send.using(user_id="ann").enqueue("acme"), attempt.using(user_id="ann").enqueue("acme")
    assert run_tasks() == 2
    for result, value in ((sent, "acme"), (counted, 1)):
        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, value)


def test_a_task_of_djangos_decorator_is_known_by_its_class(queue: FairQueue) -> None:
    assert isinstance(theirs, FairqueTask)
    result: TaskResult[..., Any] = theirs.using(user_id="ann").enqueue("acme")
    assert queue.get_task(result.id).user_id == "ann"
