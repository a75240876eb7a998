"""``manage.py fairque_docs TOPIC``: shows documentation about a message, a check, an exception or a term, without
network access.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from django.core.management.base import CommandError

from django_fairque.documentation import (
    MAX_QUERY_LENGTH,
    Explanation,
    all_entries,
    documentation_url,
    find,
    nearest_titles,
    page_address,
    page_text,
)
from django_fairque.management.base import Parser, PrintingCommand
from django_fairque.management.page_search import FoundPart, search, user_pages
from django_fairque.monitoring.formatting import pluralize

MAX_PAGES = 5
"""Maximum number of pages that are printed for a question."""
LINE_WIDTH = 110


class Command(PrintingCommand):
    help = (
        "Print what a message means and what to do, or search the documentation. TOPIC is the number of a system check (E001), "
        "the name of an exception, a word of the glossary, an error or a line of the log as it was printed, a question "
        '("how many workers"), or a page (guides/workers). Without TOPIC: list all topics.'
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("topic", nargs="*", metavar="TOPIC", help="what to look for; several words are one topic")

    def handle(self, *args: Any, **options: Any) -> None:
        topic = " ".join(options["topic"])
        if not topic.strip():
            self.write_lines(*_topics())
            return
        if topic in user_pages():
            self.write_lines(*page_text(topic).splitlines())
        elif found := find(topic):
            for entry in found:
                self.write_lines(*_lines(entry))
        elif parts := search(topic[:MAX_QUERY_LENGTH]):
            for part in parts[:MAX_PAGES]:
                self.write_lines(*_excerpt(part))
        else:
            near = nearest_titles(topic)
            known = f"the nearest topics are: {'; '.join(near)}" if near else "use other words"
            raise CommandError(
                f"nothing is found about {topic[:100]!r}; {known}. fairque_docs without a topic lists all topics and pages"
            )


def _topics() -> Iterator[str]:
    """Yield the list of pages with their headings. Below a heading, yield the titles if they are short; otherwise yield
    their number.
    """
    for page, entries in groupby(all_entries(), lambda entry: entry.page):
        yield page
        for section, below in groupby(entries, lambda entry: entry.section):
            titles = [entry.title.removeprefix("fairque.") for entry in below]
            is_short = max(map(len, titles)) <= 40
            text = f"{section}: {', '.join(titles) if is_short else pluralize(len(titles), 'entry', 'entries')}"
            yield from textwrap.wrap(text, LINE_WIDTH, initial_indent="  ", subsequent_indent="    ")
    yield "pages (fairque_docs PAGE prints one)"
    yield from textwrap.wrap(", ".join(user_pages()), LINE_WIDTH, initial_indent="  ", subsequent_indent="  ")


def _excerpt(part: FoundPart) -> Iterator[str]:
    """Yield the place where a question is answered, and the beginning of the answer."""
    yield part.name
    yield from textwrap.wrap(
        part.excerpt, LINE_WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    anchor = f"#{part.anchor}" if documentation_url() and part.anchor else ""
    yield f"  page: {page_address(part.page)}{anchor}"


def _lines(entry: Explanation) -> Iterator[str]:
    yield entry.title
    for name, text in entry.facts:
        first = f"  {name}: " if name else "  "
        yield from textwrap.wrap(
            text, LINE_WIDTH, initial_indent=first, subsequent_indent="    ", break_on_hyphens=False
        )
    if documentation_url():
        yield f"  page: {page_address(entry.page)}"
