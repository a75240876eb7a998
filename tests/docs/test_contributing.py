"""The pages for contributors stay short: a decision has at most 200 words, and all of them together at most 30,000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blocks import DOCS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

MOST_WORDS = 30_000
"""If the pages have more, remove texts that another page, a docstring or a commit has. Keep reasons, invariants, rules for
fairness, figures with their source, and how each program is run."""
DECISIONS = sorted((DOCS / "contributing" / "decisions").glob("0*.md"))
MOST_WORDS_OF_A_DECISION = 200
"""If a decision has more, keep the problem, the decision with its reasons, and the consequences; figures belong to the
benchmarks, and explanations to the page about the subject."""


def count_words(page: Path) -> int:
    return len(page.read_text().split())


def test_a_decision_is_short_and_has_its_three_parts() -> None:
    for page in DECISIONS:
        assert count_words(page) <= MOST_WORDS_OF_A_DECISION, f"shorten {page.stem}: see MOST_WORDS_OF_A_DECISION"
        for part in ("**Problem.**", "**Decision", "**Consequences.**"):
            assert part in page.read_text(), page.stem


def test_pages_for_contributors_have_at_most_30_000_words() -> None:
    pages = [*(DOCS / "contributing").rglob("*.md"), DOCS / "development.md", ROOT / "CONTRIBUTING.md"]
    words = {page.relative_to(ROOT).as_posix(): count_words(page) for page in pages}
    longest = sorted(words, key=lambda name: -words[name])[:10]
    assert sum(words.values()) <= MOST_WORDS, f"shorten some pages: see MOST_WORDS; the longest are {longest}"
