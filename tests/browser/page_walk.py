"""Every page there is, as a person comes to it: from page to page by their links, and by buttons that ask first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from django.urls import resolve, reverse

from django_fairque.admin.site import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

LINKS = "links => links.map(link => link.getAttribute('href'))"


def kind(url: str) -> tuple[Any, ...]:
    """Return the view and the names of its parameters: pages that differ only in their objects are of one kind."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    of_all = query.get("state", []) if "user" not in query else []
    return (resolve(parts.path).url_name, *sorted(query.keys() - {"queue"}), *of_all)


def walk(page: Page, of_each: int = 1) -> Iterator[str]:
    """Open every page that links lead to, ``of_each`` of each kind; yields the address of the one that is shown."""
    waiting = [reverse(f"admin:django_fairque_{listed.name}") for listed in PAGES if "<" not in listed.path]
    waiting.append(reverse("admin:django_fairque_outboxentry_changelist"))
    seen: set[str] = set()
    kinds: Counter[tuple[Any, ...]] = Counter()
    while waiting:
        url = waiting.pop(0)
        if url in seen or kinds[kind(url)] >= of_each:
            continue
        seen.add(url)
        kinds[kind(url)] += 1
        page.goto(url)
        found = page.locator("#fq-content a[href^='/'], #fq-content svg a[href^='/']").evaluate_all(LINKS)
        yield url
        waiting += sorted(found)


def questions(page: Page, url: str, known: set[str]) -> Iterator[str]:
    """Show the confirmation page of each button with "…" in its text; leave out the buttons in ``known``."""
    page.goto(url)
    for name in page.locator("#fq-content button:has-text('…')").all_inner_texts():
        where = f"{kind(url)[0]}: {name}"
        if where in known:
            continue
        known.add(where)
        page.goto(url)
        page.locator(f"#fq-content button:text-is('{name}')").first.click()
        yield where
