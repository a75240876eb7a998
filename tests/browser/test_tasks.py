"""Tasks that belong together, and tasks of which there are too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from library.tasks import complexity_of, imports_of, parse_document, report_on
from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task
from tests.browser.page_actions import choose

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


def test_the_graph_of_a_pipeline_leads_to_its_tasks(index: Page, queue: FairQueue) -> None:
    (parse_document.s("json", 1) >> (complexity_of.s("json") | imports_of.s("json")) >> report_on.s("json")).enqueue()
    page = index
    choose(page, "Dependencies")
    page.get_by_role("row", name="report_on").get_by_role("rowheader").get_by_role("link").click()
    graph = page.locator("svg.fq-graph")
    expect(graph.get_by_role("link")).to_have_count(4)
    graph.get_by_role("link").filter(has_text="parse_document").click()
    expect(page.get_by_role("heading", name="parse_document queued")).to_be_visible()
    expect(page.get_by_role("region", name="Why is it waiting?")).to_contain_text("No worker is running")


def test_all_tasks_of_a_search_are_canceled_in_slices(index: Page, queue: FairQueue) -> None:
    queue.push_batch([Task.create("noisy", 3, number) for number in range(2100)])
    queue.push_batch([Task.create("acme", 3, number) for number in range(3)])
    page = index
    choose(page, "Tasks")
    page.get_by_label("User").fill("noisy")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="Cancel all that match…").click()
    expect(page.get_by_text("2,100 queued tasks match.")).to_be_visible()
    assert queue.get_queue_sizes("noisy").ready == 2100
    page.get_by_role("button", name="Cancel these tasks").click()
    expect(page.get_by_text("1,000 of 2,100 tasks are done. Go on?")).to_be_visible()
    assert queue.get_queue_sizes("noisy").ready == 1100
    page.get_by_role("button", name="Cancel these tasks").click()
    expect(page.get_by_text("2,000 of 2,100 tasks are done. Go on?")).to_be_visible()
    page.get_by_role("button", name="Cancel these tasks").click()
    expect(page.get_by_text("2,100 tasks were changed.")).to_be_visible()
    assert (queue.get_queue_sizes("noisy").ready, queue.get_queue_sizes("acme").ready) == (0, 3)
