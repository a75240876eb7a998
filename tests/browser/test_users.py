"""The fairness page: who is noisy, and what an operator does about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task
from tests.browser.page_actions import choose

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.browser.browser_errors import Watch
    from tests.testproject.conftest import StartDemo


def test_pausing_a_noisy_user_stops_the_starts_of_its_tasks(index: Page, queue: FairQueue) -> None:
    queue.push_batch([Task.create("noisy", 3, number) for number in range(300)])
    queue.push_batch([Task.create(user, 3, number) for number in range(3) for user in ("acme", "bolt")])
    page = index
    choose(page, "Users")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="noisy"))
    expect(row).to_contain_text("noisy")
    expect(row.locator(".fq-flag")).to_have_text("noisy")
    page.get_by_role("button", name="Pause user noisy").click()
    page.get_by_role("button", name="Yes, pause it").click()
    expect(page.get_by_text("User noisy is paused: none of its tasks start")).to_be_visible()
    expect(row.locator(".fq-flag").last).to_have_text("paused")
    assert {lease.task.user_id for lease in queue.pop_batch(20, "w-1")} == {"acme", "bolt"}
    page.get_by_role("button", name="Resume user noisy").click()
    expect(page.get_by_text("User noisy is resumed.")).to_be_visible()
    assert {lease.task.user_id for lease in queue.pop_batch(20, "w-1")} == {"noisy"}


def test_a_weight_and_a_cap_are_set(index: Page, queue: FairQueue) -> None:
    queue.push(Task.create("acme", 3, None))
    page = index
    choose(page, "Users")
    page.get_by_label("Find a user by id").fill("acme")
    page.get_by_role("button", name="Find").click()
    page.get_by_label("Weight").fill("2.5")
    page.get_by_label("running").first.fill("4")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("listitem").filter(has_text="Changed for user acme")).to_be_visible()
    stats = queue.user("acme").stats()
    assert (stats.weight, stats.max_running) == (2.5, 4)


def test_the_page_of_users_shows_the_demonstration_s_progress(
    index: Page, queue: FairQueue, start_demo: StartDemo, watch: Watch
) -> None:
    page = index
    page.clock.install()
    choose(page, "Users")
    start_demo("--noisy", "8000", "--packages", "json,html")
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="noisy", exact=True))
    cells = row.get_by_role("cell")
    shown: set[str] = set()
    while len(shown) < 3:
        with page.expect_response(lambda answer: answer.request.headers.get("x-fairque-fragment") == "1"):
            page.clock.fast_forward(5000)
        if row.count():
            shown.add(cells.nth(4).inner_text())
    assert all(waiting.replace(",", "").isdecimal() for waiting in shown)
    navigations = [request for request in watch.requests if request.is_navigation_request()]
    assert navigations[-1].url.split("?")[0].endswith("/users/"), "nothing was loaded anew but the fragment"


def test_the_page_of_an_organization_leads_to_its_members(index: Page, queue: FairQueue) -> None:
    for user in ("acme/ann", "acme/bob"):
        queue.user(user).set_organization("acme")
    queue.push_batch([Task.create(user, 3, None) for user in ("acme/ann", "bolt")])
    page = index
    choose(page, "Organizations")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="acme"))
    row.get_by_role("link", name="2", exact=True).click()
    expect(page.locator("#fq-content").get_by_role("rowheader")).to_have_text(["acme/ann", "acme/bob"])
    page.get_by_role("rowheader", name="acme/bob").get_by_role("link").click()
    expect(page.get_by_role("heading", name="acme/bob")).to_be_visible()
    page.go_back()
    page.get_by_role("link", name="Organization acme", exact=True).click()
    expect(page.get_by_role("heading", name="acme")).to_be_visible()
