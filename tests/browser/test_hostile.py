"""What users are called and what tasks carry never becomes more than text, in the only judge that counts: a browser, in
which the scripts of a page may run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from tests.admin.corpus import CORPUS
from tests.admin.test_hostile import fill

from .walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Page

    from django_fairque.engine.queue import FairQueue

    from .watching import Watch

SLICE = 90
"""Strings that are in the queue at once: as many as the first two pages of a list hold."""
ATTACKS = """() => [...document.querySelectorAll("*")].flatMap(element => {
    const bad = element.getAttributeNames().filter(name => name.startsWith("on"));
    for (const name of ["href", "action", "src"]) {
        const link = element.getAttribute(name) ?? "";
        if (!new URL(link, document.baseURI).href.startsWith(`${location.origin}/`)) {
            bad.push(link);
        }
    }
    if (element.localName === "script" && !/^.(static|admin.jsi18n)./.test(element.getAttribute("src"))) {
        bad.push("of this page");
    }
    return bad.map(each => `${element.localName} ${each}`);
})"""
"""Elements with a handler of events or a link to elsewhere, and scripts that no file of this site is."""


@pytest.fixture
def visit() -> dict[str, Any]:
    """Without the policy of the site, which would only hide a hole."""
    return {"bypass_csp": True}


def pages(page: Page, queue: FairQueue, strings: Sequence[str]) -> Iterator[str]:
    entries = fill(queue, strings)
    yield from walk(page)
    for number, entry in enumerate(entries):  # user, name, payload and error of each are the string
        name, key = ("task", entry.removesuffix("~1")) if number % 2 else ("dead_letter", entry)
        url = reverse(f"admin:django_fairque_{name}", args=[quote(key)])
        page.goto(url)
        yield url


@pytest.mark.parametrize("strings", [CORPUS[at : at + SLICE] for at in range(0, len(CORPUS), SLICE)], ids=lambda _: "")
def test_hostile_text_does_nothing(page: Page, watch: Watch, queue: FairQueue, strings: list[str]) -> None:
    for url in pages(page, queue, strings):
        if found := page.evaluate(ATTACKS):
            watch.complaints.append(f"{url} has {found}")


def test_a_hole_would_be_found(page: Page, watch: Watch, queue: FairQueue) -> None:
    page.goto("/admin/django_fairque/queue/users/")
    page.locator("#fq-content").evaluate(
        "all => all.innerHTML = '<img src=/none.png onerror=alert(1)><a href=//evil.test>'"
    )
    page.wait_for_event("console")
    assert page.evaluate(ATTACKS) == ["img onerror", "a //evil.test"]
    assert "alert: 1" in watch.complaints
    watch.complaints.clear()
