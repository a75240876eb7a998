"""`enqueue` in a coroutine blocks its loop: it works, and warns where it was called."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_fairque import task
from django_fairque.conf import aclose_queues
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker.async_worker import AsyncWorker

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
async def test_a_blocking_enqueue_warns_at_its_line(
    note: Any, enqueue: Callable[[Any], object], queue: FairQueue
) -> None:
    with pytest.warns(RuntimeWarning, match=WORDS) as caught:
        enqueue(note)
    assert [warning.filename for warning in caught] == [__file__]
    assert queue.get_stats().users == 1


async def test_the_warning_is_shown_once_for_a_line(note: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            note.enqueue("a")
    assert len(caught) == 1


async def test_coroutines_threads_and_allowed_calls_do_not_warn(note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await note.aenqueue("a")
    await note.aenqueue_many([(["b"], {})])
    await note.s("c").aenqueue()
    await sync_to_async(note.enqueue)("a")
    await asyncio.to_thread(note.enqueue, "b")
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # notebooks run in a loop and set this for the ORM
    note.enqueue("a")


def test_synchronous_code_does_not_warn(note: Any) -> None:
    note.enqueue("a")


async def test_only_tasks_on_the_loop_of_a_worker_warn(note: Any, queue: FairQueue) -> None:
    caught: list[str] = []

    def enqueue() -> None:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            note.enqueue("a")
        caught.extend(str(warning.message) for warning in found)

    async def enqueue_on_loop() -> None:
        enqueue()

    for number, function in enumerate((enqueue, enqueue_on_loop)):
        await task(name=f"task-{number}")(function).aenqueue()
        await AsyncWorker(burst=True, concurrency=1).run()
        assert len(caught) == number
    assert "blocks its event loop" in caught[0]
