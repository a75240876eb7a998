"""`task_canceled` tells of what a handle has canceled, once, and as other signals tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model

from django_fairque import ShardsAwayError, Task, signals, task
from django_fairque.conf import aclose_queues, get_queue
from django_fairque.engine.model.records import TaskState
from django_fairque.tasks import results
from django_fairque.testing import capture_tasks
from tests.counting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer

Connect = Callable[..., None]
READING = {"evalsha", "exists", "fcall", "get", "hgetall"}


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect receivers for the length of a test."""
    receivers: list[Any] = []

    def connect(receiver: Any, **options: Any) -> None:
        receivers.append(receiver)
        signals.task_canceled.connect(receiver, **options)

    yield connect
    for receiver in receivers:
        signals.task_canceled.disconnect(receiver)
        signals.task_canceled.disconnect(receiver, sender="work")


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


@pytest.mark.parametrize("is_async", [False, True])
def test_a_receiver_for_one_kind_of_task_gets_the_task(queue: FairQueue, connect: Connect, is_async: bool) -> None:
    heard: list[Any] = []

    def receiver(sender: str, task: Task, **_: Any) -> None:
        heard.append((sender, task.task_id, task.state))

    connect(receiver, sender="work")
    task_id, _ = cancel(is_async=is_async)
    assert heard == [("work", task_id, TaskState.CANCELED)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_tells_of_each_task_that_it_cancels(queue: FairQueue, connect: Connect, is_async: bool) -> None:
    heard: list[tuple[str, str]] = []

    def receiver(sender: str, task: Task, **_: Any) -> None:
        heard.append((sender, task.task_id))

    @task(name="work")
    def work() -> None: ...

    connect(receiver)
    first, left, right = work.s(), work.s(), work.s()
    run = (first >> (left | right)).enqueue()
    lease = queue.pop("w")
    assert lease is not None
    queue.finish(lease)

    @async_to_sync
    async def acancel() -> int:
        canceled = await run.acancel()
        await aclose_queues()
        return canceled

    assert (acancel() if is_async else run.cancel()) == 2
    assert sorted(heard) == sorted([("work", run[left].id), ("work", run[right].id)])
    assert run.cancel() == 0
    assert len(heard) == 2


def test_what_is_captured_is_told_as_well(connect: Connect) -> None:
    heard: list[Any] = []

    def receiver(sender: str, task: Task, task_id: str, **_: Any) -> None:
        heard.append((sender, task.task_id, task_id, task.state))

    @task(name="work")
    def work() -> None: ...

    connect(receiver)
    with capture_tasks():
        one, run = work.enqueue(), (work.s() >> work.s()).enqueue()
        assert one.cancel()
        assert run.cancel() == 2
        assert not one.cancel()
    ids = [one.id, *(each.id for each in reversed(run.results))]
    assert heard == [("work", each, each, TaskState.CANCELED) for each in ids]


def test_of_many_each_is_told_that_was_canceled(queue: FairQueue, connect: Connect) -> None:
    heard: list[str] = []

    def receiver(task: Task, **_: Any) -> None:
        heard.append(task.task_id)

    connect(receiver)
    ids = [push.task_id for push in queue.push_batch([Task.create("ann", 3, None, name="work") for _ in range(450)])]
    queue.cancel(ids[0])
    assert results.cancel_many(queue, [*ids, "unknown"], "no longer wanted") == 449
    assert heard == ids[1:]
    assert queue.history(ids[1])[0].error == "no longer wanted"


def test_when_nobody_listens_nothing_is_read(queue: FairQueue, redis: Redis) -> None:
    @task(name="work")
    def work() -> None: ...

    def reads(cancel: Callable[[], object]) -> dict[str, int]:
        return {name: stat["calls"] for name, stat in counted(redis, cancel).items() if name in READING}

    first, second = work.enqueue(), work.enqueue()
    assert reads(lambda: queue.cancel(first.id)) == reads(second.cancel)


def test_what_was_canceled_before_an_error_is_told(queue: FairQueue, connect: Connect) -> None:
    heard: list[str] = []

    def receiver(task: Task, **_: Any) -> None:
        heard.append(task.task_id)

    connect(receiver)
    task_id = queue.push(Task.create("ann", 3, None, name="work")).task_id

    def act(note: Note) -> int:
        queue.cancel_many([task_id], note=note)
        raise ShardsAwayError("1 tasks were canceled, and not all could be looked at", (1,))

    with pytest.raises(ShardsAwayError):
        results.cancel_and_send_signals(queue, act)
    assert heard == [task_id]


def test_a_task_that_can_not_be_read_is_canceled_all_the_same(
    make_server: MakeServer, settings: Settings, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connect(lambda **_: None, weak=False)
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"REQUEST_TIMEOUT": 0.1}}
    queue = get_queue()
    task_id = queue.push(Task.create("ann", 3, None, name="work")).task_id

    def act(note: Note) -> int:
        done = queue.cancel_many([task_id], note=note)
        server.kill()
        return done

    assert results.cancel_and_send_signals(queue, act) == 1
    (line,) = [each for each in caplog.records if each.name == "django_fairque.tasks"]
    assert f"not sent for 1 canceled tasks ({task_id}, …)" in line.getMessage()
