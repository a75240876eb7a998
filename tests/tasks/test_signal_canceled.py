"""`task_canceled` is sent once for each task that a handle cancels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from django_fairque import ShardsAwayError, Task, signals
from django_fairque.conf import get_queue
from django_fairque.engine.inspection.task_lookup import Note
from django_fairque.engine.model.records import TaskState
from django_fairque.tasks import results
from django_fairque.testing import capture_tasks
from tests.counting import counted
from tests.fixture_types import FairQueue, MakeServer, Redis, Settings
from tests.leases import pop

from .helpers import awaited, noop

Connect = Callable[..., None]
READING = {"evalsha", "exists", "fcall", "get", "hgetall"}


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect receivers for the length of a test."""
    connected: list[tuple[Any, str | None]] = []

    def connect(receiver: Any, sender: str | None = None, **options: Any) -> None:
        connected.append((receiver, sender))
        signals.task_canceled.connect(receiver, sender, **options)

    yield connect
    for receiver, sender in connected:
        assert signals.task_canceled.disconnect(receiver, sender)


@pytest.fixture
def received(connect: Connect, request: pytest.FixtureRequest) -> list[tuple[str, str, str, TaskState]]:
    """The sender, the id twice, and the state of each task of which a signal is sent."""
    found: list[tuple[str, str, str, TaskState]] = []

    def receiver(sender: str, task: Task, task_id: str, **_: Any) -> None:
        found.append((sender, task.task_id, task_id, task.state))

    connect(receiver, **getattr(request, "param", {}))
    return found


def sent(*ids: str) -> list[tuple[str, str, str, TaskState]]:
    return [("work", task_id, task_id, TaskState.CANCELED) for task_id in ids]


def cancel(*, is_async: bool) -> tuple[str, list[bool]]:
    """Cancel a task twice. Return its id and the answers."""
    result = noop().enqueue()
    return result.id, [awaited(result.acancel) if is_async else result.cancel() for _ in range(2)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_receiver_may_read_the_database(queue: FairQueue, connect: Connect, is_async: bool) -> None:
    received: list[Any] = []

    def receiver(task_id: str, queue: str, **_: Any) -> None:
        received.append((task_id, queue, get_user_model().objects.count()))

    connect(receiver)
    task_id, answers = cancel(is_async=is_async)
    assert answers == [True, False]
    assert received == [(task_id, "default", 0)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_receiver_that_fails_is_logged_and_a_coroutine_is_awaited(
    queue: FairQueue, connect: Connect, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    received: list[str] = []

    def failing(**_: Any) -> None:
        raise ZeroDivisionError

    async def receiver(task_id: str, **_: Any) -> None:
        received.append(task_id)

    connect(failing)
    connect(receiver)
    task_id, _ = cancel(is_async=is_async)
    assert received == [task_id]
    (line,) = [record for record in caplog.records if record.name == "django_fairque.tasks"]
    assert "failing" in line.getMessage()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("received", [{"sender": "work"}, {"sender": "other"}], indirect=True, ids=["work", "other"])
def test_a_receiver_of_one_name_gets_tasks_of_that_name(
    queue: FairQueue, received: list[Any], is_async: bool, request: pytest.FixtureRequest
) -> None:
    task_id, _ = cancel(is_async=is_async)
    assert received == (sent(task_id) if "work" in request.node.callspec.id else [])


@pytest.mark.parametrize("is_async", [False, True])
def test_canceling_a_run_sends_a_signal_for_each_task(queue: FairQueue, received: list[Any], is_async: bool) -> None:
    work = noop()
    first, left, right = work.s(), work.s(), work.s()
    run = (first >> (left | right)).enqueue()
    queue.finish(pop(queue))

    assert (awaited(run.acancel) if is_async else run.cancel()) == 2
    assert sorted(received) == sorted(sent(run[left].id, run[right].id))
    assert run.cancel() == 0
    assert len(received) == 2


def test_canceling_captured_tasks_sends_signals(received: list[Any]) -> None:
    work = noop()
    with capture_tasks():
        one, run = work.enqueue(), (work.s() >> work.s()).enqueue()
        assert one.cancel()
        assert run.cancel() == 2
        assert not one.cancel()
    assert received == sent(one.id, *(result.id for result in reversed(run.results)))


def test_canceling_many_tasks_sends_a_signal_for_each_that_was_canceled(queue: FairQueue, received: list[Any]) -> None:
    ids = [push.task_id for push in queue.push_batch([Task.create("ann", 3, None, name="work") for _ in range(450)])]
    queue.cancel(ids[0])
    assert results.cancel_many(queue, [*ids, "unknown"], "no longer wanted") == 449
    assert received == sent(*ids[1:])
    assert queue.history(ids[1])[0].error == "no longer wanted"


def test_canceling_reads_nothing_more_without_receivers(queue: FairQueue, redis: Redis) -> None:
    work = noop()

    def reads(cancel: Callable[[], object]) -> dict[str, int]:
        return {name: stat["calls"] for name, stat in counted(redis, cancel).items() if name in READING}

    first, second = work.enqueue(), work.enqueue()
    assert reads(lambda: queue.cancel(first.id)) == reads(second.cancel)


def test_a_signal_is_sent_for_tasks_canceled_before_an_error(queue: FairQueue, received: list[Any]) -> None:
    task_id = queue.push(Task.create("ann", 3, None, name="work")).task_id

    def act(note: Note) -> int:
        queue.cancel_many([task_id], note=note)
        raise ShardsAwayError("1 tasks were canceled, and not all could be looked at", (1,))

    with pytest.raises(ShardsAwayError):
        results.cancel_and_send_signals(queue, act)
    assert received == sent(task_id)


def test_a_task_is_canceled_although_it_can_not_be_read_for_its_signal(
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
    (line,) = [record for record in caplog.records if record.name == "django_fairque.tasks"]
    assert f"not sent for 1 canceled tasks ({task_id}, …)" in line.getMessage()
