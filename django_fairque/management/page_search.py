"""The search of ``manage.py fairque_docs QUESTION``. The documentation's web site uses the same index and the same
ranking (``search.js``).

The index has the BM25 score of each word in each part of a page (``docs/_ext/fairque_docs/search_index.py``).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

from django_fairque.documentation import INSTALLED, run_generator

MIN_FORM_LETTERS = 4
MAX_ENDING_LETTERS = 3


class FoundPart(NamedTuple):
    """A search result: a section of a page, a row of a table, or a question with its answer."""

    page: str
    anchor: str
    name: str
    excerpt: str


def search(question: str) -> list[FoundPart]:
    """Return one result for each page that contains a word of the question: the best part of the page. The best page
    comes first.

    The score of a page is the score of its best part, plus for each word the highest score that the word has in any
    part. Pages with equal scores are sorted by name.
    """
    lists = dict.fromkeys(number for word in re.findall(r"[^\W_]+", question.lower()) for number in _list_of_word(word))
    part_scores, page_scores = defaultdict[int, float](float), defaultdict[str, float](float)
    for scores in map(_index()["scores"].__getitem__, lists):
        best = defaultdict[str, float](float)
        for number, score in zip(scores[::2], scores[1::2], strict=True):
            part_scores[number] += score
            page = _index()["parts"][number][0]
            best[page] = max(best[page], score)
        for page, score in best.items():
            page_scores[page] += score
    parts = {number: FoundPart(*_index()["parts"][number]) for number in part_scores}
    best_parts = {parts[number].page: number for number in sorted(parts, key=part_scores.__getitem__)}
    ranked = sorted((-part_scores[number] - page_scores[page], page) for page, number in best_parts.items())
    return [parts[best_parts[page]] for _, page in ranked]


def user_pages() -> list[str]:
    """Return the names of the pages that are searched."""
    return list(dict.fromkeys(page for page, *_ in _index()["parts"]))


def _list_of_word(word: str) -> list[int]:
    """Return the scores of a word, or of the longest known word with which the given word begins."""
    shortest = min(len(word), max(MIN_FORM_LETTERS, len(word) - MAX_ENDING_LETTERS))
    forms = (word[:length] for length in range(len(word), shortest - 1, -1))
    return [_index()["words"][form] for form in forms if form in _index()["words"]][:1]


@cache
def _index() -> Any:
    if INSTALLED.is_dir():
        return json.loads((INSTALLED / "search_index.json").read_text(encoding="utf-8"))
    return run_generator("search_index")["search_index"]()
