"""docs/guides/django-tasks.md: its examples run, its tables are true."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import Priority, TaskState, get_queue
from django_fairque.backends.compat import TaskResultStatus
from django_fairque.backends.options import OF_BACKEND, OF_TASKS, BackendOptions
from django_fairque.backends.results import PRIORITY_BANDS, STATUSES
from django_fairque.testing import run_tasks

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

PAGE = (Path(__file__).parent.parent.parent / "docs" / "django-tasks.md").read_text()


def test_the_examples_run(queue: FairQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, by_path, tasks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    users: Any = ModuleType("shop.users")
    users.user_of = lambda task, args, kwargs: args[0]
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.users", users)
    names: dict[str, Any] = {"__name__": "shop.tasks"}
    exec(compile(setting, "docs/guides/django-tasks.md", "exec"), names)
    settings.TASKS = names["TASKS"]
    settings.FAIRQUE = {**settings.FAIRQUE, **names["FAIRQUE"]}
    exec(compile(by_path, "docs/guides/django-tasks.md", "exec"), names)
    assert BackendOptions(settings.TASKS["default"]["OPTIONS"]).problems == []
    exec(compile(tasks, "docs/guides/django-tasks.md", "exec"), names)
    result = names["result"]
    assert get_queue("mail").get_task(result.id).user_id == "acme"
    assert get_queue("mail").get_task(result.id).max_retries == 3
    assert get_queue().get_stats().states["scheduled"] == 1
    run_tasks("mail")
    result.refresh()
    assert result.return_value == {"sent": 42}


def table(heading: str) -> list[list[str]]:
    (rows,) = re.findall(rf"^\| {heading}.*\n\| --- .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]


def test_the_bands_are_those_of_the_table() -> None:
    rows = [(int(cells[0].split(" to ")[0]), Priority[cells[1].strip("`")]) for cells in table("priority in Django")]
    assert {priority: least for least, priority in rows} == PRIORITY_BANDS


@pytest.mark.parametrize("state", TaskState)
def test_the_statuses_are_those_of_the_table(state: TaskState) -> None:
    (row,) = (cells for cells in table("state in the queue") if f"`{state.name}`" in cells[0])
    status: Any = STATUSES[state]
    assert TaskResultStatus(status).value in row[1]


def test_every_option_is_documented() -> None:
    assert {cells[0].strip("`") for cells in table("option")} == {*OF_BACKEND, *OF_TASKS}
