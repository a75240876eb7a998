"""Each part of the package stays within its budget of lines of code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.lines_of_code import count_lua, count_parts, count_python, count_tests, part_of

ROOT = Path(__file__).parent.parent
BUDGETS = {
    "core": 26_250,
    "admin": 4_380,
    "management": 2_750,
    "monitoring, web, integrations": 3_270,
    "backends, testing, checks, embedded": 3_270,
    "package root": 980,
    "Lua": 6_510,
}
TESTS_BUDGET = 66_600
ADVICE = (
    "simplify what was added, or remove what it replaces. If the lines are worth it, raise the budget in "
    "tests/test_budgets.py, and justify that in docs/contributing/decisions"
)


@pytest.fixture(scope="module")
def counts() -> dict[str, int]:
    return count_parts(ROOT / "django_fairque")


@pytest.mark.parametrize("part", BUDGETS)
def test_a_part_stays_within_its_budget(part: str, counts: dict[str, int]) -> None:
    advice = ADVICE.format(file="tests/test_budgets.py")
    assert counts[part] <= BUDGETS[part], (
        f"{part} has {counts[part]:,} lines of code, {BUDGETS[part]:,} allowed: {advice}"
    )


def test_each_part_of_the_package_has_a_budget(counts: dict[str, int]) -> None:
    assert set(counts) == set(BUDGETS)


@pytest.mark.thorough
def test_the_tests_stay_within_their_budget() -> None:
    found = count_tests(ROOT / "tests")
    assert found <= TESTS_BUDGET, f"{found:,} lines of code, {TESTS_BUDGET:,} are allowed: {ADVICE}"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Docs."""\n\nx = 1  # comment\n# comment\n', 1),
        ('x = 1\n"""What x is,\n\nin three lines."""\n', 1),
        ('def f():\n    """Docs."""\n    return (\n        1\n    )\n', 4),
        ('text = """two\nlines"""\n', 2),
        ("", 0),
    ],
)
def test_comments_docstrings_and_empty_lines_are_not_counted(source: str, lines: int) -> None:
    assert count_python(source) == lines


def test_comments_of_lua_are_not_counted() -> None:
    assert count_lua("#!lua flags=allow-oom\n-- comment\nlocal x = 1 -- one\n--[[ two\nlines ]]\n\nreturn x\n") == 2


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("engine/queue/queue.py", "core"),
        ("templatetags/fairque_admin.py", "admin"),
        ("engine/lua/lib/ring.lua", "Lua"),
        ("apps.py", "package root"),
    ],
)
def test_a_source_file_belongs_to_one_part(path: str, part: str) -> None:
    assert part_of(Path(path)) == part
