"""Figures about one Python file, found by tokenizing it. Knows no Django."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MOST_FREQUENT = 10
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass
class Census:
    """What was met so far; rows count from 1."""

    code_rows: set[int] = field(default_factory=set)
    comment_rows: set[int] = field(default_factory=set)
    names: Counter[str] = field(default_factory=Counter)
    keywords: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    last_row: int = 0

    def count_token(self, token: tokenize.TokenInfo) -> None:
        kind, text, (first, _), (last, _), _ = token
        if kind == tokenize.COMMENT:
            self.comment_rows.add(first)
        elif kind not in LAYOUT:
            self.tokens += 1
            self.code_rows.update(range(first, last + 1))
            if kind == tokenize.NAME:
                (self.keywords if keyword.iskeyword(text) else self.names)[text] += 1
        self.last_row = last

    def count_by_sight(self, lines: list[str]) -> None:
        """The lines after the last token, where the tokenizer gave up."""
        for row, line in enumerate(lines[self.last_row :], self.last_row + 1):
            if line.lstrip().startswith("#"):
                self.comment_rows.add(row)
            elif line.strip():
                self.code_rows.add(row)


def analyse(text: str) -> dict[str, Any]:
    """The figures of a Python file; the same text always gives the same ones.

    Returns
    -------
    A JSON object: ``lines``, ``code_lines`` (docstrings included), ``comment_lines`` (with nothing but a comment),
    ``longest_line`` (characters), ``tokens`` (layout and comments left out), ``functions``, ``classes``, ``names``
    (the ten most frequent identifiers as ``[name, times]``), and ``error``: None, or why the tokenizer stopped. Lines
    are counted to the end of the file all the same, everything else up to that point.
    """
    lines = list(io.StringIO(text, newline=None))
    census, error = Census(), None
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            census.count_token(token)
    # ValueError: NUL characters and lone surrogates on some versions of Python.
    except (tokenize.TokenError, SyntaxError, ValueError) as problem:
        error = explain(problem)
        census.count_by_sight(lines)
    return {
        "lines": len(lines),
        "code_lines": len(census.code_rows),
        "comment_lines": len(census.comment_rows - census.code_rows),
        "longest_line": max((len(line.rstrip("\n")) for line in lines), default=0),
        "tokens": census.tokens,
        "functions": census.keywords["def"],
        "classes": census.keywords["class"],
        "names": [list(pair) for pair in sorted(census.names.items(), key=by_frequency)[:MOST_FREQUENT]],
        "error": error,
    }


def by_frequency(pair: tuple[str, int]) -> tuple[int, str]:
    name, times = pair
    return -times, name


def explain(problem: Exception) -> str:
    if isinstance(problem, SyntaxError):
        return f"{problem.msg} (line {problem.lineno})"
    if isinstance(problem, tokenize.TokenError):
        message, (row, _) = problem.args
        return f"{message} (line {row})"
    return str(problem)
