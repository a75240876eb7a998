"""The tests of a change are found by imports and names."""

from __future__ import annotations

import pytest

from tests.tools.touched import ROOT, changed_names, find_tests, users_of


def lines_of(path: str, text: str) -> dict[str, set[int]]:
    numbers = {number for number, line in enumerate((ROOT / path).read_text().splitlines(), 1) if text in line}
    assert numbers
    return {path: numbers}


def test_changed_lines_belong_to_their_functions_classes_and_variables() -> None:
    source = (
        "LIMIT = 1\nOTHER = 2\n\nclass A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n"
    )
    assert changed_names(source, {1, 6}) == {"LIMIT", "A", "f"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("path", "text", "test"),
    [
        ("django_fairque/tasks/retries.py", "def decide_next_step", "tests/tasks/test_retries.py"),
        ("django_fairque/engine/lua/commands/settle.lua", "settle", "tests/engine/leasing/test_outcomes.py"),
        ("README.md", "#", "tests/test_readme.py"),
        ("tests/tools/test_touched.py", "def ", "tests/tools/test_touched.py"),
    ],
)
def test_a_changed_line_selects_the_tests_of_its_module(path: str, text: str, test: str) -> None:
    assert test in find_tests(lines_of(path, text))


def test_modules_that_use_a_changed_function_are_found() -> None:
    users = users_of({"django_fairque.tasks.retries": {"decide_next_step"}})
    assert "django_fairque/tasks/execution.py" in users
    assert "django_fairque/tasks/retries.py" not in users
