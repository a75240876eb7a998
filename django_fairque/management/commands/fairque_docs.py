"""``manage.py fairque_docs TOPIC``: the meaning of a message, a check, an exception or a word, without a network."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from django.core.management.base import CommandError

from django_fairque.documentation import (
    Explanation,
    all_entries,
    documentation_url,
    find,
    nearest_titles,
    page_address,
)
from django_fairque.management.base import Parser, PrintingCommand
from django_fairque.monitoring.formatting import pluralize

MAX_PRINTED = 5
"""More entries than this are listed by their titles."""
MAX_LISTED = 40
LINE_WIDTH = 110


class Command(PrintingCommand):
    help = (
        "Print what a message means and what to do. TOPIC is the number of a system check (E001), the name of an exception, "
        "a word of the glossary, a heading, or an error or a line of the log as it was printed. Without TOPIC: list all topics."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("topic", nargs="*", metavar="TOPIC", help="what to look for; several words are one topic")

    def handle(self, *args: Any, **options: Any) -> None:
        topic = " ".join(options["topic"])
        if not topic.strip():
            self.write_lines(*_topics())
            return
        found = find(topic)
        if not found:
            near = nearest_titles(topic)
            known = (
                f"the nearest topics are: {'; '.join(near)}"
                if near
                else "fairque_docs without a topic lists all topics"
            )
            raise CommandError(f"there is no entry about {topic[:100]!r}; {known}")
        if len(found) > MAX_PRINTED:
            self.write_lines(f"{len(found)} entries; name one of them:", *_titles(found))
        else:
            for entry in found:
                self.write_lines(*_lines(entry))


def _topics() -> Iterator[str]:
    """List each page with its headings. Below a heading, list the titles if they are short; otherwise count them."""
    for page, entries in groupby(all_entries(), lambda entry: entry.page):
        yield f"{page} ({page_address(page)})"
        for section, below in groupby(entries, lambda entry: entry.section):
            titles = [entry.title.removeprefix("fairque.") for entry in below]
            is_short = max(map(len, titles)) <= 40
            text = f"{section}: {', '.join(titles) if is_short else pluralize(len(titles), 'entry', 'entries')}"
            yield from textwrap.wrap(text, LINE_WIDTH, initial_indent="  ", subsequent_indent="    ")


def _titles(found: list[Explanation]) -> Iterator[str]:
    for entry in found[:MAX_LISTED]:
        yield f"  {textwrap.shorten(entry.title, LINE_WIDTH, placeholder=' …')}"
    if len(found) > MAX_LISTED:
        yield f"  and {len(found) - MAX_LISTED} more: use more words"


def _lines(entry: Explanation) -> Iterator[str]:
    yield entry.title
    for name, text in entry.facts:
        first = f"  {name}: " if name else "  "
        yield from textwrap.wrap(
            text, LINE_WIDTH, initial_indent=first, subsequent_indent="    ", break_on_hyphens=False
        )
    if documentation_url():
        yield f"  page: {page_address(entry.page)}"
