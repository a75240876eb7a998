"""What is sent: for whom, how urgently, when, into which queue."""

from __future__ import annotations

import uuid
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

from .project import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

    from django_fairque.engine.queue.queue import FairQueue

    from .conftest import Configure

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
def test_priorities_are_classes(queue: FairQueue, number: int, priority: Priority) -> None:
    result = add.using(priority=number).enqueue(1)
    assert queue.get_task(result.id).priority is priority
    assert add.get_result(result.id).task.priority == number


def test_headers_are_next_to_what_django_knows_of_a_task(queue: FairQueue, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": ["tests.tasks.test_middleware.Language"]}
    with translation.override("ja"):
        result = add.using(priority=50).enqueue(1)
    assert get_queue().get_task(result.id).payload["about"]["headers"] == {"language": "ja"}
    run_tasks()
    found = add.get_result(result.id)
    assert (found.task.priority, found.return_value) == (50, add.func(1))


def test_the_urgent_run_first(queue: FairQueue) -> None:
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
def test_what_is_no_user_is_refused_at_once(queue: FairQueue, user: object) -> None:
    with pytest.raises(InvalidTask, match="user_id must be"):
        add.using(user_id=user)


def user_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> object:
    return f"{task.name} {args} {kwargs}" if args else None


@pytest.mark.parametrize("user", [user_of, "tests.backends.test_sending.user_of"])
def test_the_option_user_says_for_whom_the_other_tasks_are(queue: FairQueue, configure: Configure, user: Any) -> None:
    configure(USER=user)
    assert queue.get_task(add.enqueue((1,), b=2).id).user_id == "add [[1]] {'b': 2}"
    assert queue.get_task(add.enqueue(a=1).id).user_id == "default"
    assert queue.get_task(add.using(user_id="ann").enqueue(1).id).user_id == "ann"


def test_a_user_that_is_none_is_refused(queue: FairQueue, configure: Configure) -> None:
    configure(USER=lambda task, args, kwargs: object())
    with pytest.raises(ValueError, match="must be text, an integer or a UUID"):
        add.enqueue(1)
    assert sum(queue.get_stats().states.values()) == 0


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


def test_without_time_zones_moments_are_naive(queue: FairQueue, settings: Settings) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    result = add.using(run_after=datetime(2100, 1, 1)).enqueue(1)  # noqa: DTZ001 - the point of it
    due = datetime(2099, 12, 31, 23, tzinfo=timezone.utc).timestamp()
    assert queue.get_task(result.id).execute_after == due
    found = add.get_result(result.id)
    assert (found, found.enqueued_at.tzinfo) == (result, None)


def test_another_queue(queue: FairQueue) -> None:
    result = add.using(queue_name="mail").enqueue(1)
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
def test_what_can_not_be_sent_is_refused(queue: FairQueue, args: Any, kwargs: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        add.enqueue(*args, **kwargs)
    assert sum(queue.get_stats().states.values()) == 0


def test_the_context_is_not_among_the_arguments(queue: FairQueue) -> None:
    describe: Any = tasks.describe
    with pytest.raises(TaskUsageError, match=r"arguments are \(wanted: "):
        describe.enqueue("context", 1)


def test_ids_are_short(queue: FairQueue) -> None:
    result = add.enqueue(1)
    assert 0 < len(result.id) <= 64


@pytest.fixture
def announced() -> Iterator[list[Any]]:
    """``(id, sender, status)`` of each `task_enqueued`."""
    heard: list[Any] = []

    def listen(sender: Any, task_result: Any, **_: Any) -> None:
        heard.append((task_result.id, sender, task_result.status.value))

    task_enqueued.connect(listen)
    yield heard
    task_enqueued.disconnect(listen)


@pytest.mark.django_db(transaction=True)
def test_a_task_is_sent_when_the_transaction_commits(queue: FairQueue, announced: list[Any]) -> None:
    with transaction.atomic():
        result = add.enqueue(1)
        assert result.enqueued_at is None
        assert announced == []
        with pytest.raises(TaskResultDoesNotExist):
            add.get_result(result.id)
    assert announced == [(result.id, FairqueBackend, "READY")]
    result.refresh()
    assert result.enqueued_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_task_of_a_transaction_that_is_rolled_back_is_not_sent(queue: FairQueue, announced: list[Any]) -> None:
    with transaction.atomic():
        result = add.enqueue(1)
        transaction.set_rollback(True)
    assert announced == []
    with pytest.raises(TaskResultDoesNotExist):
        add.get_result(result.id)


@pytest.mark.django_db
def test_in_a_test_case_the_hooks_run_when_asked(
    queue: FairQueue, announced: list[Any], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        result = add.enqueue(1)
    assert [each[0] for each in announced] == [result.id]


async def test_a_coroutine_is_told_too(queue: FairQueue, announced: list[Any]) -> None:
    result = await add.aenqueue(1)
    assert [each[0] for each in announced] == [result.id]
    await aclose_queues()
