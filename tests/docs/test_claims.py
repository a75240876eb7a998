"""Each claim of claims.md is on its page, and the tests that it names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGE = Path(__file__).parent / "claims.md"
FEWEST_CLAIMS = 40
CLAIMS = re.findall(r"^\| (.+) \| \[\w+\]\((\S+)\) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)


def test_the_page_of_claims_has_enough_rows_and_each_is_read() -> None:
    assert len(set(CLAIMS)) >= FEWEST_CLAIMS
    assert len(CLAIMS) == PAGE.read_text().count("\n| ") - 1  # one row is the head of the table


@pytest.mark.parametrize(("claim", "page", "tests"), CLAIMS)
def test_a_claim_is_on_its_page_and_has_tests(claim: str, page: str, tests: str) -> None:
    text = (PAGE.parent / page).read_text()
    assert claim in " ".join(text.split())
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
    assert named
    assert ", ".join(f"`{file}::{function}`" for file, function in named) == tests
    for file, function in named:
        found = ast.walk(ast.parse((ROOT / "tests" / file).read_text()))
        assert any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function for node in found)
