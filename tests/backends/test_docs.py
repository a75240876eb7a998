"""The tables of docs/guides/django-tasks.md are true, and the reference has every option.

The page's examples run in tests/docs/test_guides.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from django_fairque import Priority, TaskState
from django_fairque.backends.compat import TaskResultStatus
from django_fairque.backends.options import OF_BACKEND, OF_TASKS
from django_fairque.backends.results import PRIORITY_BANDS, STATUSES

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "guides" / "django-tasks.md").read_text()
REFERENCE = (DOCS / "reference" / "python.md").read_text()


def table(heading: str, text: str = PAGE) -> list[list[str]]:
    (rows,) = re.findall(rf"^\| {heading}.*\n\| --- .*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]


def test_priorities_map_to_those_of_the_documented_table() -> None:
    rows = [(int(cells[0].split(" to ")[0]), Priority[cells[1].strip("`")]) for cells in table("priority in Django")]
    assert {priority: least for least, priority in rows} == PRIORITY_BANDS


@pytest.mark.parametrize("state", TaskState)
def test_task_states_map_to_those_of_the_documented_table(state: TaskState) -> None:
    (row,) = (cells for cells in table("state in the queue") if f"`{state.name}`" in cells[0])
    status: Any = STATUSES[state]
    assert TaskResultStatus(status).value in row[1]


def test_every_option_is_documented() -> None:
    section = REFERENCE.partition("## Options of the backend for Django's tasks\n")[2].partition("\n## ")[0]
    assert {cells[0].strip("`") for cells in table("option", section)} == {*OF_BACKEND, *OF_TASKS}
    named = {name for cells in table("key") for name in re.findall(r"`([A-Z_]+)`", cells[0])}
    assert named <= {*OF_BACKEND, *OF_TASKS}
