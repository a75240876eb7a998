"""Tasks whose errors, results and log lines are objects of which every special method raises, in workers whose logging raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.tasks import registry
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.execution import event_loop
from tests.hostile import RaisingHandler, hostile_classes
from tests.worker.conftest import Workers, eventually
from tests.worker.project.tasks import Unreadable

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

KINDS = len(list(hostile_classes()))


def test_hostile_tasks_fail_without_affecting_others(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "4", TEST_HOSTILE_LOGGING="1").wait_ready()
    (process,) = worker.children()
    hostile, good = [], []
    for index in range(KINDS):
        for name in ("hostile", "hostile_async", "hostile_log"):
            hostile.append(workers.push(name, index, user="mallory", max_retries=index % 2))
        good.append(workers.push("nap", 0.01, user="ann"))
        good.append(workers.push("nap_async", 0.01, user="ann"))
    for name in ("hostile", "hostile_async"):
        task = Task.create("mallory", 3, {"args": [0], "kwargs": {"returns": True}}, name=name, max_retries=0)
        hostile.append(workers.queue.push(task).task_id)

    workers.wait_for(*good)
    workers.wait_for(*hostile, state=TaskState.FAILED)
    starts = [task_id for task_id, _ in workers.started()]
    assert sorted(starts) == sorted(good)  # each good task started once
    assert worker.children() == [process]
    failed = [workers.queue.get_task(task_id) for task_id in hostile]
    assert all(task.retry_count == task.max_retries for task in failed)
    letters = workers.queue.dlq.list(limit=len(hostile)).items
    assert {letter.failure_type for letter in letters} == {FailureType.FAILED}
    assert not [letter for letter in letters if "the worker failed" in letter.reason]
    assert worker.stop() == 0


@pytest.mark.thorough
def test_coroutines_continue_if_logging_raises(workers: Workers) -> None:
    """In its debug mode, asyncio logs a callback that takes more than 0.1 s."""
    worker = workers.start(
        *("--processes", "1", "--concurrency", "4"), TEST_HOSTILE_LOGGING="1", PYTHONASYNCIODEBUG="1"
    ).wait_ready()
    waiting = workers.push("nap_async", 2.0, user="ann")
    workers.wait_started()
    blocking = workers.push("blocks_loop", 0.3, user="mallory")
    workers.wait_for(waiting)
    assert workers.state(blocking) is TaskState.FINISHED
    assert [task_id for task_id, _ in workers.started()].count(waiting) == 1
    assert "a callback was slow" in worker.log


@pytest.fixture
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FairQueue:
    """The queue of workers in this process, whose log handlers raise."""
    del redis
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.05, "MAX_DELIVERIES": 3}}
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(logging.getLogger("django_fairque.worker"), "handlers", [RaisingHandler()])
    return get_queue()


@pytest.mark.django_db(transaction=True)
def test_an_async_worker_survives_hostile_tasks(project: FairQueue) -> None:
    kinds = list(hostile_classes())

    @task(name="odd", max_retries=0)
    async def odd(index: int) -> object:
        await asyncio.sleep(0)
        if index % 2:
            return kinds[index]("refused")
        raise kinds[index]("refused")

    @task(name="fine")
    async def fine(index: int) -> int:
        await asyncio.sleep(0.001)
        return index

    odd_ones = odd.enqueue_many([((index,), {}) for index in range(KINDS)])
    fine_ones = fine.enqueue_many([((index,), {}) for index in range(KINDS)])
    asyncio.run(AsyncWorker([project.name], concurrency=4, burst=True).run())
    assert [result.result() for result in fine_ones] == list(range(KINDS))
    assert {result.state for result in odd_ones} == {TaskState.FAILED}
    assert not [result for result in odd_ones if "the worker failed" in result.errors[-1].error]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("retries", [0, 1])
def test_the_worker_fails_during_a_task_only_a_few_times(
    project: FairQueue, monkeypatch: pytest.MonkeyPatch, retries: int
) -> None:
    monkeypatch.setattr(event_loop, "WORKER_FAULT_RETRY_SECONDS", 0.01)

    @task(name="unreadable", max_retries=retries)
    def unreadable(value: Unreadable) -> None:
        del value

    task_id = project.push(
        Task.create("ann", 3, {"args": ["x"], "kwargs": {}}, name="unreadable", max_retries=retries)
    ).task_id
    worker = Worker([project.name], concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        eventually(lambda: project.get_task(task_id).state is TaskState.FAILED)
    finally:
        worker.stop()
        thread.join(20)
    (letter,) = project.dlq.list().items
    assert letter.failure_type is FailureType.FAILED
    assert letter.reason == "the worker failed while it ran this task (SystemExit); its log has the reason"
    assert project.get_task(task_id).retry_count == retries
    assert len(project.history(task_id)) == 3 * (1 + retries)
