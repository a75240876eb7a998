"""Figures of files small enough to be counted by hand."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from library import analysis
from library.analysis import analyse

SHOP = '''\
# A shop.
import os


class Shop:
    """Sells

    things.
    """

    def price(self, thing):  # in cents
        return self.prices[thing]

    async def close(self):
        total = (
            self.price("a")
            + 1
        )
        # Nothing is left.
        return total
'''


class TestAnOrdinaryFile:
    @pytest.fixture
    def figures(self) -> dict[str, Any]:
        return analyse(SHOP)

    def test_every_line_is_code_or_comment_or_blank(self, figures: dict[str, Any]) -> None:
        # 20 lines, of which 5 are blank (the one in the docstring is part of it) and 2 have nothing but a comment.
        assert figures["lines"] == 20
        assert figures["comment_lines"] == 2
        assert figures["code_lines"] == 14

    def test_tokens_of_a_file_are_counted_without_comments(self, figures: dict[str, Any]) -> None:
        # import os | class Shop: | the docstring | def price(self, thing): | return self.prices[thing] |
        # async def close(self): | total = ( | self.price("a") | + 1 | ) | return total
        assert figures["tokens"] == 2 + 3 + 1 + 8 + 7 + 7 + 3 + 6 + 2 + 1 + 2

    def test_functions_and_classes_of_a_file_are_counted(self, figures: dict[str, Any]) -> None:
        assert (figures["functions"], figures["classes"]) == (2, 1)

    def test_the_most_frequent_names_are_counted_without_keywords(self, figures: dict[str, Any]) -> None:
        assert figures["names"] == [
            *(["self", 4], ["price", 2], ["thing", 2], ["total", 2]),
            *(["Shop", 1], ["close", 1], ["os", 1], ["prices", 1]),
        ]

    def test_the_length_of_the_longest_line_is_measured(self, figures: dict[str, Any]) -> None:
        assert figures["longest_line"] == len("    def price(self, thing):  # in cents")

    def test_a_valid_file_has_no_error(self, figures: dict[str, Any]) -> None:
        assert figures["error"] is None

    def test_the_figures_of_a_file_can_be_stored_as_json(self, figures: dict[str, Any]) -> None:
        assert json.loads(json.dumps(figures)) == figures


def test_only_the_ten_most_frequent_names_are_stored() -> None:
    text = "".join(f"name{number:02} = 0\n" * (20 - number) for number in range(15))
    assert analyse(text)["names"] == [[f"name{number:02}", 20 - number] for number in range(10)]


def test_an_empty_file_has_figures_of_zero() -> None:
    figures = analyse("")
    assert figures.pop("names") == []
    assert figures.pop("error") is None
    assert set(figures.values()) == {0}


def test_line_ends_of_other_systems_make_no_difference() -> None:
    assert analyse(SHOP.replace("\n", "\r\n")) == analyse(SHOP.replace("\n", "\r")) == analyse(SHOP)


def test_a_last_line_without_an_end_counts() -> None:
    assert analyse("a = 1\nb = 22")["lines"] == 2
    assert analyse("a = 1\nb = 22")["longest_line"] == 6


class TestFilesThatAreNotPython:
    def test_an_open_bracket_is_reported_and_lines_are_still_counted(self) -> None:
        figures = analyse("first = 1\n# note\ncall(\n")
        assert "multi-line statement" in figures["error"]
        assert (figures["lines"], figures["code_lines"], figures["comment_lines"]) == (3, 2, 1)

    def test_an_open_string_is_reported_and_lines_are_still_counted(self) -> None:
        figures = analyse("def f(): pass\n'''\nnever closed\n\n# seen as a comment\n")
        assert "multi-line string" in figures["error"]
        assert (figures["lines"], figures["code_lines"], figures["comment_lines"]) == (5, 3, 1)
        assert figures["functions"] == 1

    def test_wrong_indentation_is_reported_and_lines_are_still_counted(self) -> None:
        figures = analyse("if a:\n        b\n    c\n")
        assert figures["error"] == "unindent does not match any outer indentation level (line 3)"
        assert figures["code_lines"] == 3

    @pytest.mark.parametrize("text", ["a\0b\n", "name = '\ud800'\n", "$ ? !\n", "((((\n" * 300, "\\", "\x0c\n", "}\n"])
    def test_any_other_text_gets_figures_of_its_lines(self, text: str) -> None:
        assert analyse(text)["lines"] == text.count("\n") + (not text.endswith("\n"))


@pytest.mark.parametrize("file", sorted(Path(json.__file__).parent.glob("*.py")), ids=lambda file: file.name)
def test_functions_of_real_files_are_those_that_the_compiler_finds(file: Path) -> None:
    text = file.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    figures = analyse(text)
    assert figures["functions"] == sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    assert figures["classes"] == sum(isinstance(node, ast.ClassDef) for node in nodes)
    assert figures["lines"] == len(text.splitlines())


@pytest.mark.parametrize("module", ["analysis", "report", "sources"])
def test_modules_without_django_can_be_imported_without_it(module: str) -> None:
    program = f"import sys, library.{module}; sys.exit('django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(analysis.__file__).parent.parent, check=False)
    assert done.returncode == 0
