"""The index of the search, for the site, the wheel (``.ci/hatch_build.py``), and ``manage.py fairque_docs`` in a checkout.

SQLite's full-text search ranks the parts of pages by BM25, with stems of words. The scores of a question's words are added up, so
the index has the score of each word in each part, and those who search need no SQLite: `django_fairque/management/page_search.py`
and ``_static/search.js``. The wheel is built without the package's dependencies, so only the standard library is imported.
"""

from __future__ import annotations

import json
import re
import sqlite3
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

HERE = Path(__file__).parent
DOCS = HERE.parent.parent
FILE = "search_index.js"
USER_PAGES = ("*.md", "guides/**/*.md", "explanation/*.md", "reference/*.md", "examples/*/README.md")
NOT_FOR_USERS = ("changes", "development", "versions")
WORDS_TABLE = ("reference/glossary", "other-words-for-the-same")
"""The page and the anchor of the table with the words that others use for each of ours."""
COLUMNS = {"heading": 3, "title": 3, "keywords": 5, "words": 1, "synonyms": 1.2}
"""The columns of the index, and how much more a word counts there than in the text."""
ENTRY_WEIGHT = 0.7
"""An entry is short, so that BM25 overrates it: a row of a table seldom answers a question."""
PAGE_WEIGHTS = {"reference/": 0.8, "explanation/comparison": 0.5, "examples/": 0.7, "quickstart": 0.7, "tutorial": 0.7}
"""Beginnings of the names of pages that have a bit of everything, and so come after the guides."""
MIN_SCORE = 0.01
"""Words that most parts have, such as "task", score less and are left out."""
EXCERPT_CHARACTERS = 400

STOP_WORDS = frozenset((HERE / "stop_words.txt").read_text(encoding="utf-8").split())
WORD = re.compile(r"[^\W_]+")
BLOCK = re.compile(r"^```[^\n]*\n[\s\S]*?^```$|^#+ .*$|^(?:\|.*\n?)+|^(?:(?!\||```|#+ ).+\n?)+", re.MULTILINE)
"""A block of code, a heading, a table, or a paragraph."""
QUESTION = re.compile(r"\*\*(.+?)\*\*")
KEYWORDS = re.compile(r"<!-- keywords: (.+) -->")
LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\)")


class Part(NamedTuple):
    """A section of a page, or an entry: a row of a table, or a question with its answer."""

    page: str
    anchor: str
    title: str
    heading: str
    weight: float
    keywords: str = ""
    text: str = ""

    @property
    def name(self) -> str:
        return self.title if self.heading == self.title else f"{self.title}: {self.heading}"


def user_pages() -> list[Path]:
    """Return the files of the pages that are searched."""
    found = {page for pattern in USER_PAGES for page in DOCS.glob(pattern)}
    return sorted(page for page in found if page.stem not in NOT_FOR_USERS)


@cache
def search_index() -> dict[str, Any]:
    """Return the index.

    ``parts``: for each part its page, its anchor, its name, and the beginning of its text. ``words``: for each word the number of
    its list of ``scores``; forms of a word share one. A list has the numbers of parts, each followed by its score.
    """
    parts = [part for page in user_pages() for part in parts_of(page)]
    words_table = [(_pattern(row.heading), row.text) for row in parts if (row.page, row.anchor) == WORDS_TABLE]
    parts = [part for part in parts if (part.page, part.anchor) != WORDS_TABLE]
    rows = [_columns(part, words_table) for part in parts]
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE parts USING fts5({', '.join(COLUMNS)}, tokenize='porter unicode61')")
    connection.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", rows)
    lists: dict[tuple[float, ...], int] = {}
    words = {
        word: lists.setdefault(tuple(_scores(connection, word, parts)), len(lists))
        for word in sorted({word for row in rows for word in WORD.findall(" ".join(row).lower())})
        if word not in STOP_WORDS and not (word.isdigit() and len(word) < 3)
    }
    return {
        "parts": [[part.page, part.anchor, part.name, part.text[:EXCERPT_CHARACTERS]] for part in parts],
        "words": words,
        "scores": list(lists),
    }


def _scores(connection: sqlite3.Connection, word: str, parts: list[Part]) -> Iterator[float]:
    query = f"SELECT rowid, -bm25(parts, {', '.join(map(str, COLUMNS.values()))}) FROM parts WHERE parts MATCH ?"  # noqa: S608
    for row, score in connection.execute(query, [f'"{word}"']):
        weighted = round(score * parts[row - 1].weight, 3)
        if weighted > MIN_SCORE:
            yield row - 1
            yield weighted


def _columns(part: Part, words_table: list[tuple[re.Pattern[str], str]]) -> tuple[str, ...]:
    own = (part.heading, part.title, part.keywords, part.text)
    text = " ".join(own)
    return (*own, " ".join(words for ours, words in words_table if ours.search(text)))


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words.replace('`', '').split(', ')))})", re.IGNORECASE)


def parts_of(file: Path) -> Iterator[Part]:
    """Yield the sections of a page and their entries: rows of tables, and paragraphs that begin with a question in bold."""
    page = file.relative_to(DOCS).with_suffix("").as_posix()
    weight = next((weight for name, weight in PAGE_WEIGHTS.items() if page.startswith(name)), 1.0)
    section, paragraphs, rows = Part(page, "", "", "", weight), list[str](), list[str]()
    for block in BLOCK.findall(f"{file.read_text(encoding='utf-8')}\n# \n"):
        if block.startswith("#"):
            if section.title:
                yield section._replace(text="\n".join(paragraphs or rows))
            heading = _plain(block.lstrip("# "))
            anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            section, paragraphs, rows = Part(page, anchor, section.title or heading, heading, weight), [], []
        elif block.startswith("|"):
            for row in block.splitlines()[2:]:
                heading, *others = [_plain(cell) for cell in row.strip("|").split(" | ")]
                yield section._replace(heading=heading, text=": ".join(others), weight=ENTRY_WEIGHT * weight)
                rows.append(": ".join([heading, *others]))
        elif found := QUESTION.match(block):
            heading, text = _plain(found[1]), _plain(block[found.end() :])
            yield section._replace(heading=heading, text=text, weight=ENTRY_WEIGHT * weight)
        elif found := KEYWORDS.match(block):
            section = section._replace(keywords=found[1])
        else:
            paragraphs.append(block if block.startswith("```") else _plain(block))


def _plain(text: str) -> str:
    """Return Markdown without tags, emphasis and the targets of links."""
    return LINK.sub(r"\1", re.sub(r"</?\w+[^>]*>", "", text).replace("**", "").replace(r"\|", "|")).strip()


def write_search_index(app: Sphinx, exception: Exception | None) -> None:
    """Write the file of the site, which shows its pages and needs no excerpts."""
    if exception is None and app.builder.name == "html":
        index = search_index() | {"parts": [part[:3] for part in search_index()["parts"]]}
        text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
        Path(app.outdir, "_static", FILE).write_text(f"const FairqueIndex = {text};\n", encoding="utf-8")
