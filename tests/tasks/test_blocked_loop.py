"""`enqueue` in a coroutine blocks its loop: it works, and warns where it was called."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_fairque import task
from django_fairque.conf import aclose_queues
from django_fairque.worker.async_worker import AsyncWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from django_fairque.engine.queue.queue import FairQueue

WORDS = r"enqueue\(\) of note was called in a coroutine and blocks its event loop .* use `await task.aenqueue"


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await aclose_queues()


@pytest.fixture
def note(queue: FairQueue) -> Any:
    @task(name="note")
    def note(text: str) -> None: ...

    return note


WAYS: list[Callable[[Any], object]] = [
    lambda note: note.enqueue("a"),
    lambda note: note.enqueue_many([(["a"], {})]),
    lambda note: note.using(delay=1).enqueue("a"),
    lambda note: note.s("a").enqueue(),
    lambda note: (note.s("a") >> note.s("b")).enqueue(),
]


@pytest.mark.parametrize("enqueue", WAYS)
async def test_it_warns_where_it_is_called(note: Any, enqueue: Callable[[Any], object], queue: FairQueue) -> None:
    with pytest.warns(RuntimeWarning, match=WORDS) as caught:
        enqueue(note)
    assert [warning.filename for warning in caught] == [__file__]
    assert queue.get_stats().users == 1


async def test_python_shows_it_once_for_a_line(note: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            note.enqueue("a")
    assert len(caught) == 1


async def test_the_coroutine_does_not(note: Any) -> None:
    await note.aenqueue("a")
    await note.aenqueue_many([(["b"], {})])
    await note.s("c").aenqueue()


async def test_nor_does_a_thread_of_synchronous_code(note: Any) -> None:
    await sync_to_async(note.enqueue)("a")
    await asyncio.to_thread(note.enqueue, "b")


def test_nor_does_other_code(note: Any) -> None:
    note.enqueue("a")


async def test_nor_where_django_is_told_that_it_is_meant(note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the ORM: a notebook runs in a loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    note.enqueue("a")


async def test_tasks_on_a_worker_s_loop_are_coroutines_too(note: Any, queue: FairQueue) -> None:
    caught: list[str] = []

    @task(name="awaited")
    async def awaited() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            note.enqueue("a")
        caught.extend(str(each.message) for each in found)

    @task(name="plain")
    def plain() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            note.enqueue("b")
        caught.extend(str(each.message) for each in found)

    await awaited.aenqueue()
    await AsyncWorker(burst=True, concurrency=1).run()
    assert len(caught) == 1
    assert "blocks its event loop" in caught[0]
    await plain.aenqueue()
    await AsyncWorker(burst=True, concurrency=1).run()
    assert len(caught) == 1
