"""Declaring tasks for the backend, and its configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import django
import pytest
from asgiref.sync import sync_to_async

import django_fairque
from django_fairque.backends import FairqueTask
from django_fairque.backends.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    default_task_backend,
    task,
)
from django_fairque.tasks.schedules import sync_schedules
from django_fairque.testing import assert_enqueued, capture_tasks, eager, run_tasks
from tests.fixture_types import FairQueue, Settings

from .conftest import Configure
from .project import tasks

ROOT = Path(__file__).parent.parent.parent


def test_a_declared_task_has_the_class_of_the_backend_and_can_be_called(queue: FairQueue) -> None:
    assert isinstance(tasks.add, FairqueTask)
    assert tasks.add.call(1, 2) == 3
    add_async: Any = tasks.add_async
    assert add_async.call(1, 2) == 3


def both_kinds(n: int) -> int:
    return n


def test_a_function_can_be_declared_as_a_task_of_only_one_kind(queue: FairQueue) -> None:
    django_fairque.task(both_kinds)
    with pytest.raises(InvalidTask, match=r"both_kinds is a task of django_fairque already"):
        task(both_kinds)


def for_somebody(n: int) -> int:
    return n


@pytest.mark.skipif(django.VERSION[:2] == (6, 0), reason="Django 6.0 takes no options of backends in @task")
def test_a_declaration_names_a_user(queue: FairQueue) -> None:
    decorate: Any = task
    declared = decorate(user_id=7)(for_somebody)
    assert queue.get_task(declared.enqueue(1).id).user_id == "7"
    assert queue.get_task(declared.using(user_id=8).enqueue(1).id).user_id == "8"


def test_a_task_of_another_backend_can_be_sent_with_this_backend(queue: FairQueue, settings: Settings) -> None:
    immediate = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    ours = settings.TASKS["default"]
    settings.TASKS = {
        "default": ours,
        "now": {"BACKEND": f"{immediate}.backends.immediate.ImmediateBackend", "QUEUES": []},
        "bulk": ours,
    }
    declared = task(backend="now")(elsewhere)
    assert not isinstance(declared, FairqueTask)
    result = declared.using(backend="bulk").enqueue(3)
    assert queue.get_task(result.id).payload["args"] == [3]
    result.refresh()
    assert (result.backend, result.task) == ("bulk", declared.using(backend="bulk"))


def elsewhere(n: int) -> int:
    return n


def test_the_check_finds_queues_that_are_not_declared(queue: FairQueue, settings: Settings) -> None:
    assert default_task_backend.check() == []
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["mail", "elsewhere"]}}
    (message,) = default_task_backend.check()
    assert message.id == "fairque.E041"
    assert "'elsewhere' is not a queue of django_fairque; expected some of 'default', 'mail'" in message.msg


def test_the_check_of_queues_does_not_report_mistakes_of_the_configuration(
    queue: FairQueue, settings: Settings
) -> None:
    settings.FAIRQUE = {"NONSENSE": 1}
    assert default_task_backend.check() == []


OUTSIDE = """
from django.conf import settings
settings.configure(TASKS={"default": {"BACKEND": "django_fairque.backends.FairqueBackend"}}, INSTALLED_APPS=[])
import django
django.setup()
from django_fairque.backends.compat import default_task_backend
for message in default_task_backend.check():
    print(message)
"""


def test_the_check_finds_a_backend_whose_app_is_not_installed() -> None:
    number = "fairque.E042"
    assert f"({number}) TASKS['default'] sends tasks to django_fairque, which is not" in run_python(OUTSIDE).stdout


def user_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    return f"user {args[0]}"


@pytest.mark.parametrize(("options", "user"), [({"USER": user_of}, "user 5"), ({}, "default")])
def test_a_schedule_sends_a_task_of_django(
    queue: FairQueue, configure: Configure, settings: Settings, options: dict[str, Any], user: str
) -> None:
    configure(**options)
    schedule = {"TASK": "tests.backends.project.tasks.add", "ARGS": [5], "EVERY": 60}
    settings.FAIRQUE = {**settings.FAIRQUE, "SCHEDULES": {"adding": schedule}}
    sync_schedules()
    (found,) = django_fairque.get_queue().schedules.list()
    assert found.name == "adding"
    django_fairque.get_queue().schedules.run_now("adding")
    (sent,) = queue.tasks("queued").items
    result = tasks.add.get_result(sent.task_id)
    assert (sent.user_id, result.args, result.task) == (user, [5], tasks.add)


@pytest.mark.parametrize("work", [tasks.add, tasks.add_async], ids=lambda work: work.name)
def test_a_schedule_may_name_a_queue_that_is_not_for_enqueue(queue: FairQueue, settings: Settings, work: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": settings.TASKS["default"]["BACKEND"]}}
    schedule = {"TASK": work.module_path, "ARGS": [5, 1], "EVERY": 60, "QUEUE": "mail"}
    settings.FAIRQUE = {**settings.FAIRQUE, "SCHEDULES": {"adding": schedule}}
    sync_schedules()
    mail = django_fairque.get_queue("mail")
    mail.schedules.run_now("adding")
    (sent,) = mail.tasks("queued").items
    assert work.get_result(sent.task_id).task.queue_name == "mail"
    assert run_tasks("mail") == 1
    result = work.get_result(sent.task_id)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 6)
    with pytest.raises(InvalidTask, match="mail"):
        work.using(queue_name="mail")


def test_captured_tasks_can_be_asserted_and_run(queue: FairQueue) -> None:
    with capture_tasks() as capture:
        tasks.describe.enqueue()
        assert_enqueued(tasks.describe.module_path, args=[], user_id="default", count=1)
        assert capture.run() == 1
    assert capture[0].result["attempt"] == 1
    with eager() as capture:
        tasks.add.enqueue(1, 2)
    assert capture[0].result == 3


async def test_results_of_captured_tasks_need_no_server(queue: FairQueue, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "REDIS": {"URL": "redis://127.0.0.1:1", "SOCKET_CONNECT_TIMEOUT": 0.1}}
    with capture_tasks() as capture:
        sent = tasks.add.enqueue(1, 2)
        assert tasks.add.get_result(sent.id).status is TaskResultStatus.READY
        await sync_to_async(capture.run)()
        for result in (tasks.add.get_result(sent.id), await tasks.add.aget_result(sent.id)):
            assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        sent.refresh()
        assert sent.return_value == 3
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result("123")


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


BARE = """
import sys
{before}
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_fairque"])
import django
django.setup()
{after}
"""


def test_the_app_works_without_the_package_of_django_tasks() -> None:
    used = 'assert not {"django.tasks", "django_tasks", "django_fairque.backends"} & set(sys.modules)'
    program = BARE.format(before="sys.modules['django_tasks'] = None", after=f"del sys.modules['django_tasks']; {used}")
    assert run_python(program).stderr == ""


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has the interface itself")
def test_without_the_package_of_django_tasks_an_error_names_it() -> None:
    program = BARE.format(before="sys.modules['django_tasks'] = None", after="import django_fairque.backends")
    assert "on Django 5.2" in (found := run_python(program).stderr)
    assert "install the package django-tasks" in found
