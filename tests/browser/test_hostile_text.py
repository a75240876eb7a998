"""Names of users and payloads of tasks are shown as text and never run as code. The tests use a browser, because only a
browser runs the scripts of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_fairque.admin.pages import dead_letters, dependencies, overview, schedules, tasks, users, workers
from tests.admin.hostile_names import CORPUS
from tests.admin.test_hostile_text import fill
from tests.browser.page_walk import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import Client
    from playwright.sync_api import Page

    from django_fairque.engine.queue.queue import FairQueue
    from tests.browser.browser_errors import Watch

LISTS = (
    *(
        (dead_letters, "LETTERS_PER_PAGE"),
        (dependencies, "WAITING_TASKS_PER_PAGE"),
        (overview, "USERS_PER_TABLE"),
        (schedules, "SCHEDULES_PER_PAGE"),
    ),
    *((tasks, "TASKS_PER_PAGE"), (users, "USERS_PER_PAGE"), (workers, "WORKERS_PER_PAGE")),
)
"""The sizes of the lists' pages: the test makes them so large that the first page shows every string."""
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


def pages(page: Page, client: Client, queue: FairQueue) -> Iterator[str]:
    entries = fill(queue, CORPUS)
    yield from walk(page)
    for number, entry in enumerate(entries):  # user, name, payload and error of each are the string
        name, key = ("task", entry.removesuffix("~1")) if number % 2 else ("dead_letter", entry)
        url = reverse(f"admin:django_fairque_{name}", args=[quote(key)])
        # In place of the page that is open: read, run and shown as any other, in a third of the time of a visit.
        page.set_content(client.get(url).content.decode())
        yield url


def test_hostile_text_runs_no_script(
    page: Page, watch: Watch, queue: FairQueue, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in LISTS:
        monkeypatch.setattr(module, name, 3 * len(CORPUS))
    for url in pages(page, admin_client, queue):
        if found := page.evaluate(ATTACKS):
            watch.complaints.append(f"{url} has {found}")


def test_the_test_finds_a_script_in_a_page_loaded_by_navigation(page: Page, watch: Watch, queue: FairQueue) -> None:
    page.goto("/admin/django_fairque/queue/users/")
    page.set_content("<title>x</title><script>alert(1)</script><p><img src=/none.png onerror=alert(2)>")
    assert page.evaluate(ATTACKS) == ["script of this page", "img onerror"]
    assert {"alert: 1", "alert: 2"} <= set(watch.complaints)
    watch.complaints.clear()


def test_the_test_would_find_a_script_that_runs(page: Page, watch: Watch, queue: FairQueue) -> None:
    page.goto("/admin/django_fairque/queue/users/")
    with page.expect_event("dialog"):  # waited for from before on: it may come at once
        page.locator("#fq-content").evaluate(
            "all => all.innerHTML = '<img src=/none.png onerror=alert(1)><a href=//evil.test>'"
        )
    assert page.evaluate(ATTACKS) == ["img onerror", "a //evil.test"]
    assert "alert: 1" in watch.complaints
    watch.complaints.clear()
