"""Paragraphs of the pages for users, for a reader who knows the project only from README.

``python -m tests.tools.paragraphs SEED [COUNT]`` draws random paragraphs of guides, tutorial and explanation. The reader
retells each one, and compares it with the code.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.tools.prose import ROOT, Piece

FEWEST_WORDS = 12
START = re.compile(r"[|#<]|[-*] |\d+\. ")
"""The first characters of a line that begins a row, a heading, a comment or an item."""


def paragraphs() -> Iterator[Piece]:
    """Yield the paragraphs and the items of lists; rows of tables need their headers."""
    docs = ROOT / "docs"
    pages = [docs / "tutorial.md", docs / "quickstart.md", docs / "concepts.md"]
    pages += sorted((docs / "guides").rglob("*.md")) + sorted((docs / "explanation").glob("*.md"))
    for page in pages:
        yield from _paragraphs_of(page)


def _paragraphs_of(page: Path) -> Iterator[Piece]:
    in_code, block, first = False, [""], 0
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        text = line.strip()
        is_fence = text.startswith(("```", "~~~"))
        ends = in_code or is_fence or not text or START.match(text)
        if ends and len(" ".join(block).split()) >= FEWEST_WORDS:
            yield Piece(f"{page.relative_to(ROOT)}:{first}", " ".join(block))
        if ends:
            block = []
        if is_fence:
            in_code = not in_code
        elif text and not in_code and not text.startswith(("#", "<", "|", "!")):
            first = first if block else number
            block.append(text)


if __name__ == "__main__":
    seed, *more = map(int, sys.argv[1:])
    for index, (place, text) in enumerate(random.Random(seed).sample(list(paragraphs()), *(more or [50])), 1):
        sys.stdout.write(f"{index}. {place}\n   {text}\n")
