"""`task_pushed` is sent for each task that the queue has accepted, and for no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_fairque import BacklogFullError, chain, signals, task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.testing import run_tasks

from .helpers import awaited

THREE_FIT = 3


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The numbers of the tasks for which a signal was sent."""
    found: list[int] = []

    def receiver(task: Any, **_: Any) -> None:
        found.append(task.payload["args"][0])

    signals.task_pushed.connect(receiver)
    yield found
    signals.task_pushed.disconnect(receiver)


@pytest.fixture
def work(queue: FairQueue) -> Any:
    queue.user("acme").set_max_backlog(THREE_FIT)

    @task(name="work")
    def work(n: int) -> None: ...

    return work.using(user_id="acme")


@pytest.mark.parametrize("is_async", [False, True])
def test_each_accepted_task_of_a_call_sends_a_signal(
    queue: FairQueue, work: Any, received: list[int], is_async: bool
) -> None:
    calls: list[Any] = [((n,), {}) for n in range(5)]
    with pytest.raises(BacklogFullError) as caught:
        awaited(work.aenqueue_many, calls) if is_async else work.enqueue_many(calls)
    assert received == [0, 1, 2]
    assert len(caught.value.refused) == 2
    assert queue.get_queue_sizes("acme").ready == THREE_FIT


@pytest.mark.parametrize("is_async", [False, True])
def test_a_refused_pipeline_sends_no_signal(queue: FairQueue, work: Any, received: list[int], is_async: bool) -> None:
    work.enqueue(0)
    pipeline = chain(*(work.s(n) for n in range(1, 4)))
    with pytest.raises(BacklogFullError):
        awaited(pipeline.aenqueue) if is_async else pipeline.enqueue()
    assert received == [0]
    assert queue.get_queue_sizes("acme").ready == 1


HAPPENING = [signals.task_pushed, signals.task_started, signals.task_finished]


def test_a_receiver_of_a_name_gets_signals_of_that_name(queue: FairQueue) -> None:
    received: list[str] = []

    def receiver(sender: str, **_: Any) -> None:
        received.append(sender)

    wanted, other = (task(name=name)(lambda: None) for name in ("shop.wanted", "shop.other"))
    for signal in HAPPENING:
        signal.connect(receiver, sender=b"shop.wanted".decode())
    other.enqueue()
    wanted.enqueue()
    run_tasks()
    for signal in HAPPENING:
        assert signal.disconnect(receiver, sender=b"shop.wanted".decode())
    assert received == ["shop.wanted"] * 3
    wanted.enqueue()
    assert len(received) == 3


def test_all_signals_find_senders_by_name() -> None:
    assert {type(getattr(signals, name)) for name in signals.__all__} == {signals.NamedSignal}


async def test_each_way_of_sending_finds_the_receiver_of_a_name() -> None:
    signal = signals.NamedSignal()

    def receiver(n: int, **_: Any) -> int:
        return n

    def name(text: bytes = b"shop.named") -> str:
        return text.decode()

    signal.connect(receiver, sender=name())
    answers = [
        signal.send(name(), n=1),
        signal.send_robust(name(), n=2),
        await signal.asend(name(), n=3),
        await signal.asend_robust(name(), n=4),
        signal.send(name(b"shop.unnamed"), n=5),
    ]
    assert [[value for _, value in answer] for answer in answers] == [[1], [2], [3], [4], []]
    assert (signal.has_listeners(name()), signal.has_listeners(name(b"shop.unnamed"))) == (True, False)
    assert signal.disconnect(receiver, sender=name())
