"""Single attempts at the edges: without a worker, without a server, stopped from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_fairque.backends.compat import task_finished
from django_fairque.conf import aclose_queues, get_queue
from django_fairque.tasks import registry
from django_fairque.tasks.execution import Run, Services, aexecute, execute, prepare
from tests.fixture_types import FairQueue, MakeServer, Server, Settings
from tests.leases import pop

from .conftest import Configure
from .project import tasks


def run_of(queue: FairQueue) -> Run:
    """The next task, as a worker would begin it."""
    run = prepare(pop(queue), Services(queue.name, queue.config, queue.set_progress))
    assert isinstance(run, Run)
    return run


def test_only_a_worker_runs_the_registered_function(queue: FairQueue) -> None:
    definition = registry.find(tasks.add.module_path)
    assert definition is not None
    with pytest.raises(RuntimeError, match=r"call the task with task.call\(\)"):
        definition.function(1)


@pytest.fixture
def own_server(make_server: MakeServer, settings: Settings, configure: Configure) -> Server:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"REQUEST_TIMEOUT": 0.1}}
    configure()
    return server


def second_attempt(queue: FairQueue) -> Run:
    """Return the second run of a task whose first worker has died."""
    queue.sweep(now=pop(queue, "dead", now=1000.0).expires_at + 1)
    run = run_of(queue)
    assert run.lease.delivery == 2
    return run


def test_a_task_runs_although_its_history_can_not_be_read(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    tasks.describe.enqueue()
    run = second_attempt(get_queue())
    own_server.stop()
    outcome = execute(run)
    assert (outcome.kind, b'"attempt":1' in outcome.body) == ("finish", True)
    assert "the earlier attempts of task" in caplog.text


async def test_a_coroutine_runs_although_its_history_is_lost(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    tasks.describe_async.enqueue()
    run = second_attempt(get_queue())
    own_server.stop()
    outcome = await aexecute(run)
    assert (outcome.kind, outcome.body) == ("finish", b"[1,0]")
    assert "the earlier attempts of task" in caplog.text
    await aclose_queues()


async def test_a_coroutine_that_is_stopped_from_outside_has_not_finished(queue: FairQueue) -> None:
    finished_results: list[Any] = []

    def finished(task_result: Any, **_: Any) -> None:
        finished_results.append(task_result)

    task_finished.connect(finished)
    tasks.wait_for_ever.enqueue()
    attempt = asyncio.create_task(aexecute(run_of(queue)))
    await tasks.waiting.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    task_finished.disconnect(finished)
    assert finished_results == []
