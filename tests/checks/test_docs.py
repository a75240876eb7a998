"""docs/reference/checks.md has every number, and no other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import django_fairque

from .conftest import PAGE

PACKAGE = Path(django_fairque.__file__).parent
TESTS = Path(__file__).parent.parent
NUMBER = r"fairque\.([EW]\d{3})\b"


def rows() -> dict[str, list[str]]:
    """The number in a row's first cell -> its cells."""
    cells = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| <a ")]
    return {re.findall(NUMBER, row[0])[0]: [cell.strip() for cell in row] for row in cells}


def test_every_number_in_the_code_is_documented_and_no_other() -> None:
    source = "".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    assert set(re.findall(NUMBER, source)) == set(rows())


def test_each_check_is_documented_with_one_row_and_an_anchor_and_an_action() -> None:
    numbers = Counter(re.findall(rf"^\|.*?`{NUMBER}`", PAGE.read_text(), re.MULTILINE))
    assert set(numbers.values()) == {1}
    for number, (first, wrong, to_do) in rows().items():
        assert first == f'<a id="{number.lower()}"></a>`fairque.{number}`'
        assert len(wrong) > 20, number
        assert len(to_do) > 5, number


def test_each_number_of_a_check_has_a_test() -> None:
    tests = "".join(file.read_text() for file in TESTS.rglob("test_*.py"))
    named = set(re.findall(r'["\'](?:fairque\.)?([EW]\d{3})["\']', tests))
    assert set(rows()) - named == set()
