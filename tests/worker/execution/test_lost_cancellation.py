"""A cancellation that gets lost on its way does not keep a worker of coroutines from its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_fairque.engine.model.lease import Lease
from django_fairque.tasks.errors import TaskRevoked
from django_fairque.worker.execution.event_loop import Interrupted, Job, RunningLoop


def job(coroutine: Any) -> Job:
    lease: Any = Lease.__new__(Lease)
    return Job(coroutine, 60.0, [lease], 0, *(lambda _: None for _ in range(3)))


async def start(*coroutines: Any) -> tuple[RunningLoop, list[Job]]:
    loop, jobs = RunningLoop(), [job(coroutine) for coroutine in coroutines]
    for started_job in jobs:
        loop.submit(started_job)
    await asyncio.sleep(0.01)  # the coroutines have started
    return loop, jobs


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_lost_cancellation_of_a_coroutine_is_repeated(times: int) -> None:
    received: list[int] = []

    async def deaf() -> None:
        """Continues when it is canceled, as a coroutine does that awaits a `wait_for` which dropped the cancellation."""
        for number in range(times):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:  # noqa: PERF203 - it is what this is about
                received.append(number)
        await asyncio.Event().wait()

    loop, jobs = await start(deaf, asyncio.Event().wait)
    for number in range(times + 1):
        assert loop.is_used
        loop.cancel(again=number > 0)
        await asyncio.sleep(0.01)
    assert not loop.is_used
    assert received == list(range(times))
    for started_job in jobs:
        with pytest.raises(Interrupted) as caught:
            started_job.result()
        assert caught.value.kind is TaskRevoked


async def test_a_canceled_coroutine_may_finish_its_cleanup() -> None:
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

    loop, (first, second) = await start(careful, failing)
    loop.cancel()
    await asyncio.sleep(0.05)
    assert tidied == [True]
    with pytest.raises(Interrupted):
        first.result()
    with pytest.raises(OSError, match="on its way out"):
        second.result()


async def test_no_coroutine_starts_after_the_loop_has_canceled_all() -> None:
    loop, _ = await start()
    loop.cancel()
    late = job(asyncio.Event().wait)
    loop.submit(late)
    with pytest.raises(Interrupted):
        late.result()
    assert not loop.is_used
