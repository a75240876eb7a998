"""The backend sends a task with its user, priority, time and queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.utils import translation

from django_fairque import Priority, TaskSerializationError, TaskState, TaskUsageError, get_queue
from django_fairque.backends import FairqueBackend
from django_fairque.backends.compat import InvalidTask, TaskResultDoesNotExist, task_enqueued
from django_fairque.backends.results import PRIORITY_BANDS
from django_fairque.conf import aclose_queues
from django_fairque.testing import run_tasks
from tests.fixture_types import FairQueue, Settings

from .conftest import Configure
from .project import tasks

if TYPE_CHECKING:
    from pytest_django import DjangoCaptureOnCommitCallbacks


# What `using` takes is more than Django's types say.
add: Any = tasks.add


@pytest.mark.parametrize(
    ("number", "priority"),
    [
        *((least, priority) for priority, least in PRIORITY_BANDS.items()),
        *((least - 1, Priority(priority - 1)) for priority, least in PRIORITY_BANDS.items() if priority > 1),
        (0, Priority.NORMAL),
        (100, Priority.CRITICAL),
    ],
)
def test_a_priority_of_django_is_mapped_to_a_priority_of_the_queue(
    queue: FairQueue, number: int, priority: Priority
) -> None:
    result = add.using(priority=number).enqueue(1)
    assert queue.get_task(result.id).priority is priority
    assert add.get_result(result.id).task.priority == number


def test_headers_are_stored_with_a_task_of_django(queue: FairQueue, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": ["tests.tasks.test_middleware.Language"]}
    with translation.override("ja"):
        result = add.using(priority=50).enqueue(1)
    assert get_queue().get_task(result.id).payload["about"]["headers"] == {"language": "ja"}
    run_tasks()
    found = add.get_result(result.id)
    assert (found.task.priority, found.return_value) == (50, add.func(1))


def test_urgent_tasks_run_first(queue: FairQueue) -> None:
    tasks.ran.clear()
    for number in (-100, 0, 100):
        add.using(priority=number).enqueue(number)
    run_tasks()
    assert tasks.ran == [100, 0, -100]


@pytest.mark.parametrize("user", ["ann", 7, uuid.UUID(int=7)])
def test_a_task_is_for_the_user_that_using_names(queue: FairQueue, user: object) -> None:
    result = add.using(user_id=user).enqueue(1)
    assert queue.get_task(result.id).user_id == str(user) == result.task.user_id
    assert add.get_result(result.id) == result


def test_users_take_turns(queue: FairQueue) -> None:
    tasks.ran.clear()
    for number in range(4):
        add.using(user_id="greedy").enqueue(number)
    add.using(user_id="modest").enqueue(100)
    run_tasks()
    assert tasks.ran.index(100) < 2


@pytest.mark.parametrize("user", ["", "x" * 257, 1.5, True])
def test_an_invalid_user_is_refused(queue: FairQueue, user: object) -> None:
    with pytest.raises(InvalidTask, match="user_id must be"):
        add.using(user_id=user)


def user_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> object:
    return f"{task.name} {args} {kwargs}" if args else None


@pytest.mark.parametrize("user", [user_of, "tests.backends.test_sending.user_of"])
def test_the_option_user_chooses_the_user_of_other_tasks(queue: FairQueue, configure: Configure, user: Any) -> None:
    configure(USER=user)
    assert queue.get_task(add.enqueue((1,), b=2).id).user_id == "add [[1]] {'b': 2}"
    assert queue.get_task(add.enqueue(a=1).id).user_id == "default"
    assert queue.get_task(add.using(user_id="ann").enqueue(1).id).user_id == "ann"
    configure(USER=lambda task, args, kwargs: object())
    with pytest.raises(ValueError, match="must be text, an integer or a UUID"):
        add.enqueue(1)
    assert queue.get_stats().states["queued"] == 3


@pytest.mark.parametrize("later", [timedelta(hours=1), datetime(2100, 1, 1, tzinfo=timezone.utc)])
def test_run_after_is_a_moment_or_a_time_from_now(queue: FairQueue, later: Any) -> None:
    before = datetime.now(timezone.utc)
    result = add.using(run_after=later).enqueue(1)
    expected = before + later if isinstance(later, timedelta) else later
    assert abs(result.task.run_after - expected) < timedelta(seconds=10)
    task = queue.get_task(result.id)
    assert task.state is TaskState.SCHEDULED
    assert task.execute_after == pytest.approx(result.task.run_after.timestamp())
    assert add.get_result(result.id) == result
    assert run_tasks() == 0


def test_moments_are_naive_in_a_project_without_time_zones(queue: FairQueue, settings: Settings) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    result = add.using(run_after=datetime(2100, 1, 1)).enqueue(1)  # noqa: DTZ001 - the point of it
    due = datetime(2099, 12, 31, 23, tzinfo=timezone.utc).timestamp()
    assert queue.get_task(result.id).execute_after == due
    found = add.get_result(result.id)
    assert (found, found.enqueued_at.tzinfo) == (result, None)


def test_a_task_is_sent_to_its_named_queue(queue: FairQueue) -> None:
    result = add.using(queue_name="mail").enqueue(1)
    assert 0 < len(result.id) <= 64, "longer ids are not valid for Django"
    assert get_queue("mail").get_task(result.id).name == "tests.backends.project.tasks.add"
    assert add.get_result(result.id) == result
    assert run_tasks("mail") == 1


def test_a_queue_must_be_declared(queue: FairQueue, settings: Settings) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default", "mial"]}}
    with pytest.raises(InvalidTask, match=r"'mial' is not declared .* did you mean 'mail'"):
        add.using(queue_name="mial").enqueue(1)
    with pytest.raises(InvalidTask, match="not valid for backend"):
        add.using(queue_name="mail")


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        ((datetime(2026, 1, 1, tzinfo=timezone.utc),), {}, TypeError),
        ((b"\xff",), {}, ValueError),
        ((float("nan"),), {}, TaskSerializationError),
        (({1: 2},), {}, TaskSerializationError),
        (("x" * 2**24,), {}, TaskSerializationError),
        ((), {}, TaskUsageError),
        ((1, 2, 3), {}, TaskUsageError),
        ((1,), {"c": 2}, TaskUsageError),
    ],
)
def test_arguments_that_are_no_json_are_refused(
    queue: FairQueue, args: Any, kwargs: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        add.enqueue(*args, **kwargs)
    assert sum(queue.get_stats().states.values()) == 0


def test_the_context_is_not_among_the_arguments(queue: FairQueue) -> None:
    describe: Any = tasks.describe
    with pytest.raises(TaskUsageError, match=r"arguments are \(wanted: "):
        describe.enqueue("context", 1)


@pytest.fixture
def announced() -> Iterator[list[Any]]:
    """``(id, sender, status)`` of each `task_enqueued`."""
    received: list[Any] = []

    def listen(sender: Any, task_result: Any, **_: Any) -> None:
        received.append((task_result.id, sender, task_result.status.value))

    task_enqueued.connect(listen)
    yield received
    task_enqueued.disconnect(listen)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_a_task_is_sent_when_the_transaction_commits_and_never_after_a_rollback(
    queue: FairQueue, announced: list[Any], is_rolled_back: bool
) -> None:
    with transaction.atomic():
        result = add.enqueue(1)
        assert (result.enqueued_at, announced) == (None, [])
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(result.id)
        transaction.set_rollback(is_rolled_back)
    if is_rolled_back:
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(result.id)
        assert announced == []
    else:
        assert announced == [(result.id, FairqueBackend, "READY")]
        result.refresh()
        assert result.enqueued_at is not None


@pytest.mark.django_db
def test_the_hooks_of_a_test_case_send_the_signal(
    queue: FairQueue, announced: list[Any], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        result = add.enqueue(1)
    assert [task_id for task_id, *_ in announced] == [result.id]


async def test_a_coroutine_sends_the_signal(queue: FairQueue, announced: list[Any]) -> None:
    result = await add.aenqueue(1)
    assert [task_id for task_id, *_ in announced] == [result.id]
    await aclose_queues()
