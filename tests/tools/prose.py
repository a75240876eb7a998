"""Prose inside the code: docstrings and comments of the package, and the names of tests.

``python -m tests.tools.prose SEED [COUNT]`` draws random pieces, for a reader who does not know the project and retells
each of them.
``tests/test_prose.py`` counts the pieces that break the rules for sentences.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GENERATED = "async_queue.py"
UNCLEAR_START = re.compile(r"(?:^|[.:;] )(?:What|How|Of|As|Those|It|They|Who|Whoever)\b")
UNCLEAR_NAME = re.compile(
    r"(?:it|they|those|these|what|who(?:m|ever)?|how|so|nor|and|or|but|of|ones|others|one (?:that|which|of))\b"
)
UNCLEAR_CLAUSE = re.compile(r"\b(?:of|with|by|for|on|to) (?:what|who)\b", re.IGNORECASE)
LUA_CONTRACT = re.compile(r"(?:KEYS|ARGV|REPLY|COST|include)\b")
"""Lines of a script's header that are a table, which other tests read."""


class Piece(NamedTuple):
    """A docstring, or a block of comments, and where it is."""

    place: str
    text: str


def pieces_of_package() -> Iterator[Piece]:
    """Yield the prose of all modules and scripts."""
    for file in sorted((ROOT / "django_fairque").rglob("*")):
        if file.suffix == ".py" and file.name != GENERATED and "migrations" not in file.parts:
            yield from docstrings(file)
            yield from _join_lines(file, python_comments(file.read_text()))
        elif file.suffix == ".lua":
            yield from _join_lines(file, lua_comments(file.read_text()))


def docstrings(file: Path) -> Iterator[Piece]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Piece(f"{file.relative_to(ROOT)}:{node.lineno}", " ".join(node.value.value.split()))


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment that is prose."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not text.startswith(("noqa", "type:", "pragma", "!")):
            yield token.start[0], text


def lua_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment that is prose."""
    for number, line in enumerate(source.splitlines(), 1):
        _, dashes, text = line.partition("--")
        if dashes and not LUA_CONTRACT.match(text.strip()):
            yield number, text.strip("- ")


def _join_lines(file: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Piece]:
    block: list[str] = []
    first = last = 0
    for number, text in lines:
        if block and number == last + 1:
            block.append(text)
        else:
            if block:
                yield Piece(f"{file.relative_to(ROOT)}:{first}", " ".join(block))
            block, first = [text], number
        last = number
    if block:
        yield Piece(f"{file.relative_to(ROOT)}:{first}", " ".join(block))


def names_of_tests() -> Iterator[Piece]:
    """Yield the names of all tests, as words."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def test_(\w+)", file.read_text()):
            yield Piece(str(file.relative_to(ROOT)), name.replace("_", " "))


def is_unclear(text: str) -> bool:
    """Return whether a text has a sentence without a noun as its subject, or a clause with a bare "what" or "who"."""
    return bool(UNCLEAR_START.search(text) or UNCLEAR_CLAUSE.search(text))


def is_unclear_name(name: str) -> bool:
    """Return whether the name of a test, as words, begins without a subject or has fewer than three words."""
    return bool(UNCLEAR_NAME.match(name)) or len(name.split()) < 3


def draw(seed: int, count: int) -> list[Piece]:
    """Return random pieces of prose: three quarters of the package's, and a quarter names of tests."""
    generator = random.Random(seed)
    inside = [piece for piece in pieces_of_package() if len(piece.text.split()) > 4]
    of_tests = count // 4
    return [*generator.sample(inside, count - of_tests), *generator.sample(list(names_of_tests()), of_tests)]


if __name__ == "__main__":
    seed, *more = map(int, sys.argv[1:])
    for index, (place, text) in enumerate(draw(seed, *(more or [40])), 1):
        sys.stdout.write(f"{index}. {place}\n   {text}\n")
