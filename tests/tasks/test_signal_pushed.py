"""`task_pushed` tells of each task that the queue has accepted, and of no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync

from django_fairque import BacklogFullError, chain, signals, task
from django_fairque.conf import aclose_queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from django_fairque.engine.queue.queue import FairQueue

THREE_FIT = 3


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The numbers of the tasks that were told of."""
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


@async_to_sync
async def awaited(send: Callable[..., Awaitable[Any]], *args: Any) -> None:
    try:
        await send(*args)
    finally:
        await aclose_queues()


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_call_that_is_refused_in_part_the_rest_is_told(
    queue: FairQueue, work: Any, heard: list[int], is_async: bool
) -> None:
    calls: list[Any] = [((n,), {}) for n in range(5)]
    with pytest.raises(BacklogFullError) as caught:
        awaited(work.aenqueue_many, calls) if is_async else work.enqueue_many(calls)
    assert heard == [0, 1, 2]
    assert len(caught.value.refused) == 2
    assert queue.get_queue_sizes("acme").ready == THREE_FIT


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_pipeline_that_is_refused_nothing_is(
    queue: FairQueue, work: Any, heard: list[int], is_async: bool
) -> None:
    work.enqueue(0)
    pipeline = chain(*(work.s(n) for n in range(1, 4)))
    with pytest.raises(BacklogFullError):
        awaited(pipeline.aenqueue) if is_async else pipeline.enqueue()
    assert heard == [0]
    assert queue.get_queue_sizes("acme").ready == 1
