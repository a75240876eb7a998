"""A cancellation that gets lost on its way does not keep a worker of coroutines from its end."""

from __future__ import annotations

import asyncio

import pytest

from django_fairque.worker.execution.event_loop import cancel_all


async def deaf(times: int, received: list[int]) -> None:
    """Goes on when it is canceled, as whoever awaits a `wait_for` that dropped it."""
    for number in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # noqa: PERF203 - it is what this is about
            received.append(number)
    await asyncio.Event().wait()


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_it_is_repeated_until_all_have_ended(times: int) -> None:
    received: list[int] = []
    tasks = [asyncio.ensure_future(deaf(each, received)) for each in (times, 0)]
    await asyncio.sleep(0)  # they have begun
    await asyncio.wait_for(cancel_all(tasks, 0.001), 20)
    assert all(task.cancelled() for task in tasks)
    assert received == list(range(times))


async def test_who_tidies_up_is_let(recwarn: pytest.WarningsRecorder) -> None:
    tidied = []

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            tidied.append(True)

    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("on its way out")

    tasks = [asyncio.ensure_future(careful()), asyncio.ensure_future(failing())]
    await asyncio.sleep(0)
    await cancel_all(tasks, 60.0)
    assert tidied == [True]
    assert await asyncio.gather(*tasks, return_exceptions=True)


async def test_there_may_be_none() -> None:
    await cancel_all([], 1.0)
