"""Looking for results, and what is not found."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import threading
from typing import Any

import django
import pytest

from django_fairque import Priority, Task, TaskFailedError, get_queue
from django_fairque.backends.compat import (
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task_backends,
)
from django_fairque.conf import aclose_queues
from django_fairque.tasks import registry
from django_fairque.testing import run_tasks
from tests.fixture_types import FairQueue, Redis, Settings
from tests.leases import pop
from tests.stored_tasks import replace_payload

from .conftest import Configure, run
from .project import tasks


@pytest.mark.parametrize("result_id", ["123", "", "x" * 300, "\ud800", None, 5])
async def test_an_unknown_id_has_no_result(queue: FairQueue, result_id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result_id)
    with pytest.raises(TaskResultDoesNotExist):
        await default_task_backend.aget_result(result_id)
    await aclose_queues()


def test_a_queue_that_is_not_declared_has_no_results(queue: FairQueue, settings: Settings) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["a", "default"]}}
    result = tasks.add.enqueue(1)
    assert default_task_backend.get_result(result.id) == result
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("123")


async def test_a_result_is_looked_up_in_its_backend(queue: FairQueue, settings: Settings) -> None:
    settings.TASKS = {
        "default": {**settings.TASKS["default"], "QUEUES": ["default"]},
        "mails": {**settings.TASKS["default"], "QUEUES": ["mail"]},
    }
    result = tasks.add.using(backend="mails", queue_name="mail").enqueue(1)
    assert task_backends["mails"].get_result(result.id) == result
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    with pytest.raises(TaskResultDoesNotExist):
        await default_task_backend.aget_result(result.id)
    await aclose_queues()


async def test_reading_a_result_with_another_task_is_an_error(queue: FairQueue) -> None:
    result = await tasks.add.aenqueue(1)
    with pytest.raises(TaskResultMismatch):
        tasks.other.get_result(result.id)
    with pytest.raises(TaskResultMismatch):
        await tasks.other.aget_result(result.id)
    await aclose_queues()


def test_a_task_sent_without_django_tasks_has_no_result(queue: FairQueue) -> None:
    result = tasks.ordinary.enqueue("ann", 1)
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)


def test_a_forgotten_result_can_not_be_refreshed(queue: FairQueue, redis: Redis) -> None:
    result = tasks.add.enqueue(1)
    redis.flushall()
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_name_from_the_server_is_not_imported(queue: FairQueue) -> None:
    pushed = queue.push(Task.create("ann", 3, {"args": [], "kwargs": {}}, name="antigravity.fly"))
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(pushed.task_id)
    run_tasks()
    assert "antigravity" not in sys.modules


def test_an_undeclared_waiting_task_has_a_result(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tasks.add.enqueue(1)
    monkeypatch.setattr(registry, "_tasks", {})
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    run_tasks()
    monkeypatch.undo()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)
    assert "is registered in this process" in result.errors[0].traceback


def test_the_class_of_an_error_is_not_imported(queue: FairQueue) -> None:
    result = tasks.add.enqueue(1)
    queue.fail(pop(queue), "antigravity.Crash: up and away", delay=None)
    result.refresh()
    (error,) = result.errors
    assert error.exception_class_path == "antigravity.Crash"
    with pytest.raises(ImportError, match="import it first"):
        _ = error.exception_class
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("path", ["subprocess.run", "builtins.print", "django_fairque.nothing"])
def test_a_stored_path_that_names_no_exception_is_not_imported(queue: FairQueue, path: str) -> None:
    result = tasks.add.enqueue(1)
    queue.fail(pop(queue), f"{path}: ?", delay=None)
    result.refresh()
    with pytest.raises(ValueError, match="does not reference a valid exception"):
        _ = result.errors[0].exception_class


def test_an_expired_task_that_never_started_has_an_error(queue: FairQueue) -> None:
    task = Task.create("a", 3, {"args": [1], "kwargs": {}}, name=tasks.add.module_path, expires_at=1001.0)
    queue.push(task, now=1000.0)
    queue.sweep(now=1002.0)
    result = tasks.add.get_result(task.task_id)
    assert (result.status, result.attempts, result.args) == (TaskResultStatus.FAILED, 0, [1])
    assert [error.exception_class for error in result.errors] == [TaskFailedError]


@pytest.mark.parametrize(("signing", "reason"), [("off", "can't be decoded"), ("on", "no signature")])
def test_a_damaged_payload_is_a_failure_with_an_error(
    queue: FairQueue, redis: Redis, settings: Settings, signing: str, reason: str
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "SIGNING": signing}
    result = tasks.add.enqueue(1)
    replace_payload(redis, result.id, b"{")
    run(result)
    assert (result.status, len(result.errors)) == (TaskResultStatus.FAILED, 1)
    assert reason in result.errors[0].traceback


@pytest.mark.parametrize(
    "about",
    [
        "text",
        [1],
        {"at": "2026-02-31T00:00:00", "priority": 1000, "run_after": "soon", "backend": "gone", "user_id": ""},
        {"at": 5, "priority": True, "run_after": None, "backend": 7, "user_id": [1]},
    ],
)
def test_invalid_edited_parts_of_a_payload_are_ignored(queue: FairQueue, about: Any) -> None:
    payload = {"args": [1], "kwargs": {}, "about": about}
    pushed = queue.push(Task.create("ann", Priority.HIGH, payload, name=tasks.add.module_path))
    result = tasks.add.get_result(pushed.task_id)
    assert (result.task.priority, result.task.run_after, result.task.backend) == (20, None, "default")
    run(result, 1)
    assert result.return_value == 1


def test_the_backends_of_all_threads_share_one_queue(queue: FairQueue) -> None:
    seen: list[Any] = []

    def enqueue() -> None:
        seen.append((task_backends["default"], get_queue(), tasks.add.enqueue(1)))

    threads = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(backend) for backend, _, _ in seen}) == 4
    assert {id(shared) for _, shared, _ in seen} == {id(queue)}
    assert len({tasks.add.get_result(result.id).id for _, _, result in seen}) == 4


def test_the_backend_declares_the_features_that_it_supports(queue: FairQueue) -> None:
    features = ("defer", "async_task", "get_result", "priority")
    assert all(getattr(default_task_backend, f"supports_{feature}") is True for feature in features)


def test_a_result_that_is_read_again_equals_the_result_of_enqueue(queue: FairQueue, configure: Configure) -> None:
    result = tasks.add.using(priority=-7).enqueue(1)
    assert dataclasses.asdict(tasks.add.get_result(result.id)) == dataclasses.asdict(result)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="tasks can be pickled from Django 6.1 on")
def test_tasks_and_results_can_be_pickled(queue: FairQueue) -> None:
    task: Any = tasks.add
    result = task.using(user_id="ann").enqueue(1)
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(result.task)).user_id == "ann"
