"""A page refreshes itself while somebody looks at it. The tests move the page's clock, so that none waits for it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

from django_fairque.admin.status_line import status_probe
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
"""Pretend that another tab was chosen: a browser that is driven by a test treats every tab as visible."""


@pytest.fixture(autouse=True)
def status_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's clock is moved, and not that of the site, which keeps the health of the queues for some seconds."""
    monkeypatch.setattr(status_probe, "keep_seconds", 0.0)


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


def test_figures_are_refreshed_without_reloading_the_page(overview: Page, queue: FairQueue) -> None:
    assert tile(overview, "Queued") == "0"
    queue.push(Task.create("acme", 3, None))
    refresh(overview)
    expect(overview.locator(".fq-tiles div").filter(has_text="Queued").locator("dd")).to_have_text("1")


def test_a_hidden_tab_sends_no_requests(overview: Page, watch: Watch) -> None:
    refresh(overview)
    overview.evaluate(HIDE, arg=True)
    before = refreshes(watch)
    overview.clock.run_for(10 * PERIOD)
    assert refreshes(watch) == before
    with overview.expect_response(lambda answer: "x-fairque-fragment" in answer.request.headers):
        overview.evaluate(HIDE, arg=False)  # and at once when it is looked at again


def test_an_opened_section_stays_open_after_a_refresh(overview: Page) -> None:
    figures = overview.locator("details#fq-figures")
    figures.locator("summary").click()
    refresh(overview)
    expect(figures).to_have_attribute("open", "")


def test_typed_text_and_focus_stay_while_figures_are_refreshed(page: Page, queue: FairQueue) -> None:
    page.clock.install()
    page.goto("/admin/django_fairque/queue/users/")
    field = page.get_by_label("Find a user by id")
    field.press_sequentially("ac")
    queue.push(Task.create("acme", 3, None))
    refresh(page)
    expect(page.get_by_role("link", name="acme").first).to_be_visible()
    expect(field).to_have_value("ac")
    expect(field).to_be_focused()
    field.press_sequentially("me")
    expect(field).to_have_value("acme")


def test_selected_rows_stay_selected_after_a_refresh(page: Page, queue: FairQueue) -> None:
    """The row is found by its key: another task in its place must not be chosen."""
    queue.push_batch([Task.create("acme", 3, None, task_id=f"task-{number}") for number in range(5)])
    page.clock.install()
    page.goto("/admin/django_fairque/queue/tasks/?state=queued")
    chosen = page.locator("input[name=task][value=task-2]")
    chosen.check()
    page.evaluate("window.row = document.querySelector('input[value=task-2]').closest('tr')")
    queue.cancel("task-0")
    queue.cancel("task-1")
    queue.push(Task.create("acme", 3, None, task_id="task-5"))
    refresh(page)
    expect(page.locator("input[name=task][value=task-5]")).to_be_visible()
    expect(page.locator("input[name=task]:checked")).to_have_count(1)
    expect(chosen).to_be_checked()
    assert page.evaluate("window.row === document.querySelector('input[value=task-2]').closest('tr')")
    queue.cancel("task-2")
    refresh(page)
    expect(chosen).to_have_count(0)
    expect(page.locator("input[name=task]:checked")).to_have_count(0)


def test_the_scroll_position_and_the_selected_text_survive_a_refresh(page: Page, queue: FairQueue) -> None:
    long_ago = time.time() - 60  # rows are higher when their tasks have waited for a second without a worker
    queue.push_batch([Task.create(f"user{number}", 3, None) for number in range(20)], now=long_ago)
    page.set_viewport_size({"width": 390, "height": 844})
    page.clock.install()
    page.goto("/admin/django_fairque/queue/users/")
    pause = page.get_by_role("button", name="Pause user user9", exact=True)
    pause.scroll_into_view_if_needed()
    scroller = page.locator(".fq-scroll").first
    scroller.evaluate("each => { each.scrollLeft = 120; }")

    def place() -> tuple[float, float]:
        """Where the button is in the window, and how far the table is scrolled."""
        box = pause.bounding_box()
        assert box
        return box["y"], scroller.evaluate("each => each.scrollLeft")

    before = place()
    assert min(page.evaluate("scrollY"), before[1]) > 0, "down the page, and across the table"
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#fq-content caption'))")
    selected = page.evaluate("getSelection().toString()")
    queue.push(Task.create("user9", 3, None))
    refresh(page)
    assert place() == pytest.approx(before, abs=0.9)  # the rows above may change by a part of a pixel
    assert page.evaluate("getSelection().toString()") == selected != ""
    pause.click()
    page.get_by_role("button", name="Yes, pause it").click()
    expect(page.get_by_role("button", name="Resume user user9", exact=True)).to_be_attached()


def test_a_reader_can_stop_updates_and_start_them_again(overview: Page, queue: FairQueue, watch: Watch) -> None:
    live = overview.locator("#fq-live")
    expect(live).to_contain_text("Live, updated")
    live.get_by_role("button", name="Stop updates").click()
    expect(live).to_contain_text("Updates stopped, loaded")
    before = refreshes(watch)
    queue.push(Task.create("acme", 3, None))
    overview.clock.run_for(10 * PERIOD)
    assert refreshes(watch) == before
    expect(live).to_contain_text(re.compile(r"Updates stopped, loaded 5\d s ago"))
    live.get_by_role("button", name="Update again").click()
    expect(live).to_contain_text("Live, updated 0 s ago")
    assert tile(overview, "Queued") == "1"


def test_the_title_and_the_status_line_are_refreshed(overview: Page, queue: FairQueue) -> None:
    expect(overview).to_have_title(re.compile("^Degraded "))
    queue.push(Task.create("acme", 3, None))
    overview.clock.fast_forward(PERIOD)
    expect(overview).to_have_title(re.compile("^No workers "))
    expect(overview.locator("#fq-status")).to_contain_text("No workers")


def test_a_page_whose_refresh_is_off_is_marked_as_not_live(page: Page, queue: FairQueue, watch: Watch) -> None:
    page.clock.install()
    page.goto("/admin/django_fairque/queue/dead-letters/")
    page.clock.run_for(2 * PERIOD)
    expect(page.locator("#fq-live")).to_have_text("Not live, loaded 10 s ago")
    assert refreshes(watch) == 0


def test_an_expired_session_is_shown_after_two_failures(overview: Page, watch: Watch) -> None:
    live = overview.locator("#fq-live")
    overview.context.clear_cookies()
    refresh(overview)
    expect(live).to_have_attribute("data-state", "live")
    refresh(overview)
    expect(live).to_contain_text("Not live: log in again; updated")
    expect(live).to_have_class(re.compile("fq-live-broken"))
    live.get_by_role("button", name="Reload").click()
    overview.wait_for_url("**/admin/login/**")


def test_a_site_that_is_down_is_shown_after_two_failures(overview: Page, watch: Watch) -> None:
    live = overview.locator("#fq-live")
    overview.route("**/overview/**", lambda route: route.abort())
    for _ in range(2):
        with overview.expect_event("requestfailed"):
            overview.clock.fast_forward(PERIOD)
    expect(live).to_contain_text("Not live: the site does not answer; updated")
    expect(live).to_have_css("font-weight", "700")
    overview.unroute("**/overview/**")
    refresh(overview)
    expect(live).to_contain_text("Live, updated")
    expect(live).not_to_have_class(re.compile("fq-live-broken"))
    watch.complaints.clear()  # the browser reports each request that failed


def test_a_request_to_a_site_that_hangs_ends_after_ten_seconds(overview: Page, watch: Watch) -> None:
    overview.route("**/overview/**", lambda route: None)
    for _ in range(2):
        with overview.expect_event("requestfailed"):
            overview.clock.run_for(3 * PERIOD)
    expect(overview.locator("#fq-live")).to_contain_text("Not live: the site does not answer; updated")
    overview.unroute_all(behavior="ignoreErrors")
    watch.complaints.clear()


def test_keys_move_between_the_search_and_the_rows(page: Page, queue: FairQueue) -> None:
    queue.push_batch([Task.create(f"user{number}", 3, None) for number in range(3)])
    page.goto("/admin/django_fairque/queue/users/")
    page.keyboard.press("/")
    field = page.get_by_label("Find a user by id")
    expect(field).to_be_focused()
    page.keyboard.press("j")
    expect(field).to_have_value("j")
    field.blur()
    links = page.locator("#fq-content tbody th a")
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        expect(links.nth(row)).to_be_focused()


SMALL_TARGETS = """() => [...document.querySelectorAll(
    ".fq-top button, .fq-menu :is(a, button, select), #fq-content :is(button, select, summary, th > a, dt > a), " +
    "#fq-content input:not([type=hidden])"
)].filter(each => each.getClientRects().length).filter(each => {
    const box = each.getBoundingClientRect();
    return box.width < 24 || box.height < 24;
}).map(each => each.outerHTML)"""


@pytest.mark.parametrize("name", ["overview", "users", "tasks", "dead_letters", "schedules"])
def test_targets_are_at_least_24_pixels(page: Page, queue: FairQueue, name: str) -> None:
    queue.push_batch([Task.create(f"user{number}", 3, None) for number in range(3)])
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/admin/django_fairque/queue/{name.replace('_', '-')}/")
    assert page.evaluate(SMALL_TARGETS) == []


def test_a_banner_is_shown_while_the_server_is_down(
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
