"""Access to the documentation of this version without a network: the addresses of its pages, and the entries that
explain a message.

A wheel contains the pages with these entries in ``docs/``; a checkout contains them among all other pages.
"""

from __future__ import annotations

import difflib
import re
import runpy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

OFFLINE_PAGES = (
    "reference/checks",
    "guides/troubleshooting",
    "contributing/log-messages",
    "contributing/messages",
    "reference/python",
    "reference/exceptions",
    "reference/glossary",
)
"""The pages with entries that explain a message, a check or a term."""
MAX_QUERY_LENGTH = 2000
WORDS_OF_OTHERS = "Other words for the same"
"""The heading above a table for the search, whose rows answer nothing."""
MIN_MATCHED_LETTERS = 12
"""Minimum number of letters of a message that a line must contain to match. The parts of a message that vary are
unknown."""

INSTALLED = Path(__file__).parent / "docs"
"""The folder with the documentation pages in a wheel."""
_CHECKOUT = INSTALLED.parent.parent / "docs"
_MESSAGES = "contributing/messages"
_EXPLAINED_MESSAGES = ("guides/troubleshooting", "contributing/log-messages")
_FILLED_IN = "…"
_ROW = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]*)\)")
_CODE = re.compile(r"`([^`]+)`")


@cache
def documentation_url() -> str:
    """Return the address of the published documentation, without a slash at the end.

    The build of a published package writes the address into the package's metadata (``[project.urls]``).

    Returns: the address; empty if this package was built without an address.
    """
    try:
        entries = metadata.metadata("django-fairque").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return ""
    urls = dict(str(entry).split(", ", 1) for entry in entries)
    return urls.get("Documentation", "").rstrip("/")


def page_address(page: str) -> str:
    """Return the place of a page: its address, or the command that prints the page if this package was built without an
    address.

    Args:
        page: The page's path below docs/, without the file extension: ``tutorial``, ``guides/workers``.
    """
    return f"{documentation_url()}/{page}.html" if documentation_url() else f"manage.py fairque_docs {page}"


def get_explanation(number: str) -> str:
    """Return the last sentence of a system check's hint: the address of the check's explanation, or the command that
    prints it.

    Args:
        number: The check's number without a prefix, such as ``E001``.
    """
    if documentation_url():
        return f"See {page_address('reference/checks')}#{number.lower()}"
    return f"Run manage.py fairque_docs {number}"


@dataclass(frozen=True)
class Explanation:
    """One entry of a documentation page that explains something: a row of a table, or a message."""

    page: str
    """The page's path below docs/, without the file extension."""
    section: str
    """The heading above the entry."""
    title: str
    """The subject of the entry: the number of a check, an exception, a term, or a message."""
    facts: tuple[tuple[str, str], ...] = ()
    """Facts about the subject: pairs of a column's heading and the text of the cell."""
    messages: tuple[str, ...] = field(default=(), repr=False)
    """The messages that the entry explains, with ``…`` for the parts that vary."""

    @property
    def text(self) -> str:
        """All words of the entry."""
        return " ".join([self.title, *(text for _, text in self.facts)])

    def matched_letters(self, line: str) -> int:
        """Return the number of letters that a printed or logged line has in common with one of the entry's messages; 0
        if it is another message.
        """
        return max((_matched_letters(message, line) for message in self.messages), default=0)


def _matched_letters(message: str, line: str) -> int:
    position, matched = 0, 0
    for part in filter(None, (part.strip() for part in message.lower().split(_FILLED_IN))):
        found = line.find(part, position)
        if found < 0:
            return 0
        position = found + len(part)
        matched += len(part)
    return matched if matched >= MIN_MATCHED_LETTERS else 0


@cache
def all_entries() -> tuple[Explanation, ...]:
    """Return the entries of all pages, in the order of the pages."""
    return tuple(entry for page in OFFLINE_PAGES for entry in _entries(page))


def find(query: str) -> list[Explanation]:
    """Find entries by the number of a check, an exception, a term, a heading, or a printed or logged message.

    Args:
        query: the text to find; only its first 2,000 characters are used.

    Returns: the best matches: entries with this title, or else entries below this heading, or else messages that the
    query contains (the longest first).
    """
    wanted = " ".join(query[:MAX_QUERY_LENGTH].lower().split()).removeprefix("fairque.")
    if not wanted:
        return []
    entries = [entry for entry in all_entries() if entry.section != WORDS_OF_OTHERS]
    for found in (
        [entry for entry in entries if entry.title.lower().removeprefix("fairque.") == wanted],
        [entry for entry in entries if entry.section.lower() == wanted],
        _match_messages(wanted, entries),
    ):
        if found:
            return _without_bare_messages(found)
    return []


def nearest_titles(query: str) -> list[str]:
    """Return up to five titles or headings that are spelled similarly to a query, the nearest first."""
    known = {entry.title.removeprefix("fairque.").lower(): entry.title for entry in all_entries()}
    known |= {entry.section.lower(): entry.section for entry in all_entries()}
    wanted = query[:MAX_QUERY_LENGTH].lower().strip().removeprefix("fairque.")
    return [known[match] for match in difflib.get_close_matches(wanted[:100], known, n=5, cutoff=0.5)]


def _match_messages(line: str, entries: Sequence[Explanation]) -> list[Explanation]:
    matched = [(entry.matched_letters(line), entry) for entry in entries]
    matched.sort(key=lambda found: -found[0])
    # A message may be a part of a longer message.
    return [entry for letters, entry in matched if letters and letters * 2 >= matched[0][0]]


def _without_bare_messages(found: list[Explanation]) -> list[Explanation]:
    """Remove messages without an explanation, if other entries explain something."""
    return [entry for entry in found if entry.page != _MESSAGES] or found


def _entries(page: str) -> Iterator[Explanation]:
    section, head = "", list[str]()
    in_block = False
    for line in page_text(page).splitlines():
        if line.startswith("```"):
            in_block = not in_block
        elif in_block:
            if page == _MESSAGES and line.strip(f" {_FILLED_IN}:"):
                yield Explanation(page, section, line, (("printed as", section),), (line,))
        elif line.startswith("#"):
            section, head = plain(line.lstrip("# ")), []
        elif not line.startswith("|"):
            head = []
        elif not head:
            head = _cells(line)
        elif set(line) - set("|-: "):
            yield _row(page, section, head, line)


def _row(page: str, section: str, head: list[str], line: str) -> Explanation:
    first, *others = _ROW.split(line.strip().strip("|"))
    facts = tuple((name, plain(cell)) for name, cell in zip(head[1:], others, strict=False) if cell.strip())
    messages = tuple(_CODE.findall(first)) if page in _EXPLAINED_MESSAGES else ()
    return Explanation(page, section, plain(first).replace("`", ""), facts, messages)


def _cells(line: str) -> list[str]:
    return [plain(cell) for cell in _ROW.split(line.strip().strip("|"))]


def plain(text: str) -> str:
    """Convert Markdown to plain text for a terminal: without anchors and emphasis, but with the addresses of links to
    other sites.
    """
    text = re.sub(r"</?\w+[^>]*>", "", text).replace("**", "").replace(r"\|", "|")
    return _LINK.sub(_link, text).strip()


def _link(link: re.Match[str]) -> str:
    text, target = link[1], link[2]
    return f"{text} ({target})" if re.match(r"https?:", target) else text


@cache
def page_text(page: str) -> str:
    """Return the Markdown of a page, including the parts that are generated."""
    if INSTALLED.is_dir():
        return (INSTALLED / f"{page}.md").read_text(encoding="utf-8")
    text = (_CHECKOUT / f"{page}.md").read_text(encoding="utf-8")
    return str(run_generator("messages")["completed"](text))


@cache
def run_generator(name: str) -> dict[str, Any]:
    """Return a module that generates pages or the index. Only a checkout contains such modules; a wheel contains their
    results.
    """
    return runpy.run_path(str(_CHECKOUT / "_ext" / "fairque_docs" / f"{name}.py"))
