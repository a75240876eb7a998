"""`task_canceled` tells of what a handle has canceled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model

from django_fairque import signals, task
from django_fairque.conf import aclose_queues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.engine.queue import FairQueue

Connect = Callable[[Any], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect receivers for the length of a test."""
    receivers: list[Any] = []

    def connect(receiver: Any) -> None:
        receivers.append(receiver)
        signals.task_canceled.connect(receiver)

    yield connect
    for receiver in receivers:
        signals.task_canceled.disconnect(receiver)


def cancel(*, is_async: bool) -> tuple[str, list[bool]]:
    """The id of a task, and what canceling it twice says."""

    @task(name="work")
    def work() -> None: ...

    result = work.enqueue()

    @async_to_sync
    async def acancel() -> list[bool]:
        said = [await result.acancel(), await result.acancel()]
        await aclose_queues()
        return said

    return result.id, acancel() if is_async else [result.cancel(), result.cancel()]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_receiver_may_ask_the_database(queue: FairQueue, connect: Connect, is_async: bool) -> None:
    heard: list[Any] = []

    def receiver(task_id: str, queue: str, **_: Any) -> None:
        heard.append((task_id, queue, get_user_model().objects.count()))

    connect(receiver)
    task_id, said = cancel(is_async=is_async)
    assert said == [True, False]
    assert heard == [(task_id, "default", 0)]


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_fails_is_logged_and_one_may_be_a_coroutine(
    queue: FairQueue, connect: Connect, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    heard: list[str] = []

    def failing(**_: Any) -> None:
        raise ZeroDivisionError

    async def receiver(task_id: str, **_: Any) -> None:
        heard.append(task_id)

    connect(failing)
    connect(receiver)
    task_id, _ = cancel(is_async=is_async)
    assert heard == [task_id]
    (line,) = [each for each in caplog.records if each.name == "django_fairque.tasks"]
    assert "failing" in line.getMessage()
