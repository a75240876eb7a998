"""Docstrings and comments of the package are sentences that are understood at first reading, as far as a program can tell."""

from __future__ import annotations

import pytest

from tests.tools.prose import (
    draw,
    is_unclear,
    is_unclear_name,
    lua_comments,
    names_of_tests,
    pieces_of_package,
    python_comments,
)

UNCLEAR_PIECES = 0
"""Pieces that break the rules for sentences today. Rewrite one instead of adding one, and lower the number."""
UNCLEAR_NAMES = 9
"""Names of tests that a stranger can't understand, at most. Lower the number when you have renamed some."""


@pytest.mark.thorough
def test_no_more_docstrings_and_comments_are_unclear() -> None:
    found = [piece.place for piece in pieces_of_package() if is_unclear(piece.text)]
    assert len(found) <= UNCLEAR_PIECES, f"{len(found)} unclear pieces, {UNCLEAR_PIECES} are allowed"
    assert len(found) == UNCLEAR_PIECES, f"{len(found)} unclear pieces; lower UNCLEAR_PIECES"


def test_no_more_names_of_tests_lack_a_subject() -> None:
    found = [f"{piece.place} {piece.text}" for piece in names_of_tests() if is_unclear_name(piece.text)]
    assert len(found) <= UNCLEAR_NAMES, f"{len(found)} unclear names, {UNCLEAR_NAMES} are allowed: {found}"


@pytest.mark.parametrize(
    ("name", "unclear"),
    [("it is refused", True), ("only once", True), ("a worker stops", False), ("one that is not there is found", True)],
)
def test_names_without_a_subject_are_unclear(name: str, *, unclear: bool) -> None:
    assert is_unclear_name(name) is unclear


@pytest.mark.parametrize(
    ("text", "unclear"),
    [
        ("What a task returned.", True),
        ("Return the lease. It is renewed.", True),
        ("The list of what is waiting.", True),
        ("The user for who it runs", True),
        ("Return whether a user waits, and what it costs.", False),
        ("Whether a task waits.", False),
        ("Ask the server.", False),
    ],
)
def test_sentences_without_a_subject_are_unclear(text: str, *, unclear: bool) -> None:
    assert is_unclear(text) is unclear


def test_comments_are_found_and_instructions_to_tools_are_not() -> None:
    assert list(python_comments("x = 1  # one\n# noqa: E501\n# two\n")) == [(1, "one"), (3, "two")]
    assert list(lua_comments("-- one\n-- KEYS  base\nlocal x = 1 -- two\n")) == [(1, "one"), (3, "two")]


@pytest.mark.thorough
def test_the_same_seed_draws_the_same_pieces() -> None:
    assert draw(1, 40) == draw(1, 40)
    assert len(set(draw(1, 40))) == 40
