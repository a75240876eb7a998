"""The pages for contributors stay short: a decision has at most 200 words, and all of them together at most 30,000."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .blocks import DOCS

if TYPE_CHECKING:
    from pathlib import Path

DECISIONS = sorted((DOCS / "contributing" / "decisions").glob("0*.md"))
MOST_WORDS_OF_A_DECISION = 200
"""If a decision has more, keep the problem, the decision with its reasons, and the consequences; figures belong to the
benchmarks, and explanations to the page about the subject."""


def count_words(page: Path) -> int:
    return len(page.read_text().split())


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_short_and_has_its_three_parts(page: Path) -> None:
    text = page.read_text()
    assert count_words(page) <= MOST_WORDS_OF_A_DECISION, "shorten it: see MOST_WORDS_OF_A_DECISION"
    for part in ("**Problem.**", "**Decision", "**Consequences.**"):
        assert part in text
