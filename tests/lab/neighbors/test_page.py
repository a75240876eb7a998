"""The page about bad neighbors shows every case as it is declared."""

from __future__ import annotations

import re

import pytest

from . import page
from .cases import UNNOTICED_WAIT_SECONDS, Case, Felt, all_cases

ROWS = page.read(page.PAGE.read_text())


def test_the_page_of_neighbors_lists_exactly_the_cases() -> None:
    """If not: ``python -m tests.lab.neighbors --page``, with the names of new cases to run only those."""
    assert sorted(row[:3] for row in ROWS) == sorted(page.declared(case) for case in all_cases())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.neighbor)
def test_each_cell_of_the_page_is_unaffected_or_has_a_number(row: page.Row) -> None:
    assert row.bound == page.UNAFFECTED or re.search(r"\d|twice", row.bound)
    assert all(re.fullmatch(r"\d+|\d+\.\d\d s|—", figure) for figure in row[3:])
    is_noticed = row.p99_wait != "—" and float(row.p99_wait.split()[0]) > UNNOTICED_WAIT_SECONDS
    assert not is_noticed or re.search(r"\d s\b", row.bound), "the page names no bound"


def test_the_page_states_the_longest_unnoticed_wait() -> None:
    assert f"no wait of more than {UNNOTICED_WAIT_SECONDS:g} s" in " ".join(page.PAGE.read_text().split())


def test_a_new_case_is_added_to_the_page_and_an_old_one_is_updated() -> None:
    text = f"before\n{page.BEGIN}\n{page.END}\nafter\n"
    case = Case("B2", "does a|b", "1 extra start", lambda world: Felt())
    first = page.replaced(text, [page.row_of(case, Felt(1, 0.5, 0))])
    assert page.read(first) == [page.Row("B2", "does a\\|b", "1 extra start", "1", "0.50 s", "0")]
    other = page.row_of(Case("A1", "sets a variable", "unaffected", lambda world: Felt()), Felt())
    second = page.replaced(first, [other, page.row_of(case, Felt(0, None, 0))])
    assert page.read(second) == [other, page.Row("B2", "does a\\|b", "1 extra start", "0", "—", "0")]
    assert second.startswith("before\n")
    assert second.endswith("\nafter\n")
