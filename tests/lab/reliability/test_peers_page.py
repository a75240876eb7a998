"""The table of other queues' failures names each of them, and only tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (Path(__file__).parent / "failures.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.exists():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def missing_in(page: str) -> list[str]:
    return [f"{file}::{name}" for file, name in TEST.findall(page) if name not in names_in(file)]


def test_the_page_lists_every_failure_once_and_in_order() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, 120))


def test_every_failure_has_an_issue_and_an_answer() -> None:
    for number, what, where, why in ROWS:
        assert what.strip(), number
        assert re.search(r"#\d|CVE-|an earlier implementation", where), number
        assert TEST.search(why) or len(why) > 20, number


def test_every_test_that_is_named_exists() -> None:
    assert missing_in(PAGE) == []


def test_a_page_that_names_a_missing_test_is_found() -> None:
    assert missing_in("`tests/engine/queue/test_errors.py::test_nothing` `tests/nowhere.py::test_x`") == [
        "tests/engine/queue/test_errors.py::test_nothing",
        "tests/nowhere.py::test_x",
    ]
