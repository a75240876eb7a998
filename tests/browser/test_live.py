"""Live in a browser: its drawings have colors, and their figures can be opened."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from django_fairque.engine.model.task import Task
from tests.admin.test_live import beat, serve
from tests.browser.test_refreshing import refresh

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from django_fairque.engine.queue.queue import FairQueue

FILLS = """paths => paths.map(path => {
    const style = getComputedStyle(path), box = path.getBoundingClientRect();
    return box.width && box.height ? `${style.fill} ${style.fillOpacity}` : "not drawn";
})"""


def test_the_heat_map_and_the_comparison_of_users_are_drawn(page: Page, queue: FairQueue) -> None:
    begin = (time.time() - 120) // 1800 * 1800  # before the minute in which the tasks below have run
    queue.push(Task.create("ann", 3, None), now=begin - 1800)
    queue.sweep(now=begin - 1740)
    queue.sweep(now=begin)
    serve(queue, "quiet")
    beat(queue, "w1", ["noisy"] * 40 + ["quiet"] * 20)
    page.clock.install()
    page.goto("/admin/django_fairque/queue/live/")
    expect(page.get_by_text("fair turns saved 1 user about 18 s")).to_be_visible()
    compared = page.get_by_role("table", name="What users waited, and would have waited first come, first served")
    expect(compared.get_by_role("row", name="quiet")).to_contain_text("6 s")
    slots = page.get_by_role("table", name="The last 60 seconds of each slot, by user")
    assert len(set(slots.locator("path:not(.fq-live-idle)").evaluate_all(FILLS))) == 2
    heat = page.get_by_role("region", name="Longest waits in each half hour of the last 24 hours")
    row = heat.get_by_role("row", name="ann")
    expect(row).to_contain_text("30 min")
    assert row.locator("path[class*=fq-heat]").evaluate_all(FILLS) == ["rgb(198, 40, 40) 0.6", "rgb(198, 40, 40) 0.8"]
    figures = heat.get_by_role("group")
    figures.locator("summary").click()
    expect(figures.get_by_role("row").filter(has_text="ann")).to_have_count(2)
    refresh(page)
    expect(figures.get_by_role("row").filter(has_text="ann")).to_have_count(2)


def test_the_nightly_job_of_the_demonstration_is_started_with_a_button(page: Page, queue: FairQueue) -> None:
    page.clock.install()
    page.goto("/admin/django_fairque/queue/live/")
    page.get_by_role("button", name="Nightly job").click()
    expect(page.get_by_text("Nightly job: 200 bulk tasks were sent")).to_be_visible()
    lanes = page.get_by_role("table", name="Lanes, and how long the tasks of the last five minutes waited for a start")
    expect(lanes.get_by_role("row", name="bulk")).to_contain_text("200")
    refresh(page)
    expect(page.get_by_role("button", name="Nightly job")).to_be_visible()
    assert queue.get_stats().lanes["bulk"].ready == 200
