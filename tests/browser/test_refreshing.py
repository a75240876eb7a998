"""What a page does by itself while somebody looks at it. The page's clock is moved, so that no test waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from tests.browser.browser_errors import Watch
    from tests.conftest import MakeServer

PERIOD = 5000
"""Milliseconds between two refreshes."""
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""As if another tab were chosen: for the browser that is driven every tab is in front."""


@pytest.fixture
def overview(page: Page, queue: FairQueue) -> Page:
    page.clock.install()
    page.goto("/admin/django_fairque/queue/overview/")
    return page


def refresh(page: Page) -> None:
    with page.expect_response(lambda answer: "x-fairque-fragment" in answer.request.headers):
        page.clock.fast_forward(PERIOD)


def refreshes(watch: Watch) -> int:
    return sum("x-fairque-fragment" in request.headers for request in watch.requests)


def tile(page: Page, title: str) -> str:
    return page.locator(".fq-tiles div").filter(has_text=title).locator("dd").inner_text()


def test_figures_are_renewed_without_the_page(overview: Page, queue: FairQueue) -> None:
    assert tile(overview, "Queued") == "0"
    queue.push(Task.create("acme", 3, None))
    refresh(overview)
    expect(overview.locator(".fq-tiles div").filter(has_text="Queued").locator("dd")).to_have_text("1")


def test_nothing_is_asked_while_the_tab_is_hidden(overview: Page, watch: Watch) -> None:
    refresh(overview)
    overview.evaluate(HIDE, arg=True)
    before = refreshes(watch)
    overview.clock.run_for(10 * PERIOD)
    assert refreshes(watch) == before
    with overview.expect_response(lambda answer: "x-fairque-fragment" in answer.request.headers):
        overview.evaluate(HIDE, arg=False)  # and at once when it is looked at again


def test_what_was_opened_stays_open(overview: Page) -> None:
    figures = overview.locator("details#fq-throughput-figures")
    figures.locator("summary").click()
    refresh(overview)
    expect(figures).to_have_attribute("open", "")


def test_nobody_is_disturbed_while_typing(page: Page, queue: FairQueue, watch: Watch) -> None:
    page.clock.install()
    page.goto("/admin/django_fairque/queue/users/")
    page.get_by_label("Find a user by id").press_sequentially("ac")
    page.clock.run_for(10 * PERIOD)
    assert refreshes(watch) == 0
    expect(page.get_by_label("Find a user by id")).to_have_value("ac")


def test_a_banner_while_the_server_is_down(
    page: Page, queue: FairQueue, make_server: MakeServer, settings: Settings
) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    page.clock.install()
    page.goto("/admin/django_fairque/queue/overview/")
    banner = page.get_by_role("alert")
    expect(banner).to_have_count(0)
    server.stop()
    refresh(page)
    expect(banner).to_contain_text("Nothing can be shown of queue default for now")
    server.start()
    refresh(page)
    expect(banner).to_have_count(0)
    assert tile(page, "Queued") == "0"
