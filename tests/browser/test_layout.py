"""Room on the pages: the first figure is near the top, the menu has groups, and nothing is cut off on a telephone or on paper."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from django_fairque.engine.model.task import Task
from tests.admin.test_live import beat

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from django_fairque.engine.queue.queue import FairQueue

GROUPS = {
    "Now": ["Overview", "Live", "Incidents", "Queues"],
    "Customers": ["Users", "Organizations", "Limits", "SLA"],
    "Tasks": ["Tasks", "Task names", "Dead letters", "Dependencies", "Runs", "Schedules"],
    "System": ["Workers", "Model events", "Acts", "Audit", "Outbox"],
}
WIDE = 1280
"""Pixels of the window, which the fixture opens."""
NARROW = {"width": 390, "height": 844}
MOST_PIXELS_ABOVE_FIGURES = 220
OUTSIDE = """elements => elements.filter(element => {
    const box = element.getBoundingClientRect();
    return !box.width || box.left < 0 || box.right > innerWidth || box.top < 0 || box.bottom > innerHeight;
}).map(element => element.outerHTML.slice(0, 80))"""
"""The elements that are not wholly in the viewport."""


def open_page(page: Page, name: str) -> None:
    page.goto(reverse(f"admin:django_fairque_{name}"))


def heights(elements: Locator) -> set[int]:
    return set(elements.evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().height))"))


def test_the_first_figure_of_the_overview_is_near_the_top_also_with_several_reasons(full: None, page: Page) -> None:
    open_page(page, "overview")
    box = page.locator("#fq-content dd").first.bounding_box()
    assert box is not None
    assert box["y"] <= MOST_PIXELS_ABOVE_FIGURES
    status = page.locator("#fq-status")
    assert status.locator("li").count() > 1
    assert heights(status) == {30}, "one line"
    status.locator("summary").click()
    assert min(heights(status)) > 60, "a line for each reason"


def test_the_menu_has_four_groups(full: None, page: Page) -> None:
    open_page(page, "overview")
    menu = page.get_by_role("navigation", name="Pages of the queue")
    found = {
        name: menu.get_by_role("list", name=name, exact=True).get_by_role("link").all_inner_texts() for name in GROUPS
    }
    assert found == GROUPS
    assert menu.get_by_role("list").count() == len(GROUPS)


@pytest.mark.parametrize("name", ["overview", "task_names", "acts"])
def test_the_menu_has_two_lines_although_the_name_of_the_page_is_bold(full: None, page: Page, name: str) -> None:
    open_page(page, name)
    lists = page.get_by_role("navigation", name="Pages of the queue").get_by_role("list")
    assert len(set(lists.evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().top))"))) == 2


def test_rows_with_links_are_as_high_as_rows_without_links(full: None, page: Page) -> None:
    open_page(page, "overview")
    with_links = page.locator("#fq-content tr:has(th > a)")
    others = page.locator("#fq-content tbody tr:visible:not(:has(a))")
    assert with_links.count()
    assert others.count()
    assert heights(with_links) == heights(others)


@pytest.mark.parametrize("visit", [{"viewport": NARROW}])
def test_a_telephone_shows_the_buttons_below_a_long_list_of_tasks(full: None, page: Page) -> None:
    open_page(page, "tasks")
    buttons = page.locator("#fq-content form[method=post] button")
    assert buttons.count() == 2
    assert buttons.evaluate_all(OUTSIDE) == []


@pytest.mark.parametrize("visit", [{"viewport": NARROW}])
def test_a_telephone_shows_the_cells_of_the_heat_map_and_of_slots(page: Page, queue: FairQueue) -> None:
    begin = (time.time() - 120) // 1800 * 1800
    queue.push(Task.create("a-customer-with-a-long-name.example", 3, None), now=begin - 1800)
    queue.sweep(now=begin - 1740)
    queue.sweep(now=begin)
    beat(queue, "web-1.example:4711", ["noisy"] * 60)
    open_page(page, "live")
    tables = page.locator("#fq-content table.fq-live-slots")
    assert tables.count() == 2
    cut = "cells => cells.map(cell => cell.getBoundingClientRect().right).filter(right => right > innerWidth)"
    assert tables.locator("td").evaluate_all(cut) == []
    overlapping = "names => names.filter(name => name.scrollWidth > name.clientWidth).map(name => name.innerText)"
    assert tables.locator("tbody th").evaluate_all(overlapping) == []


def test_paper_has_the_figures_and_reasons_without_the_navigation(full: None, page: Page) -> None:
    open_page(page, "overview")
    page.locator("html").evaluate("root => { root.dataset.theme = 'dark'; }")
    page.emulate_media(media="print")
    for hidden in ("#header", "#nav-sidebar", ".fq-menu", ".fq-live", "#fq-content .fq-choices"):
        assert not page.locator(hidden).is_visible(), hidden
    assert page.locator("#fq-content dd").first.is_visible()
    assert min(heights(page.locator("#fq-status"))) > 60, "a line for each reason"
    assert page.locator("#content").evaluate("content => content.clientWidth") > 0.95 * WIDE
    assert page.locator("body").evaluate("body => getComputedStyle(body).color") == "rgb(34, 34, 34)"
