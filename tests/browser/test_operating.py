"""A person adds, runs and pauses schedules, and stops workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

from tests.browser.page_actions import choose

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import StartWorker


def test_a_schedule_is_added_run_now_and_paused(index: Page, queue: FairQueue) -> None:
    page = index
    choose(page, "Schedules")
    page.get_by_role("link", name="Add a schedule").click()
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Task:", exact=True).fill("library.tasks.run_errand")
    page.get_by_label("Cron").fill("30 25 * * *")
    page.get_by_label("Arguments:", exact=True).fill('["json", 7]')
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").first).to_be_visible()  # no day has 25 hours
    page.get_by_label("Cron").fill("30 4 * * *")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("row", name="nightly")
    expect(row).to_contain_text("30 4 * * *")
    page.get_by_role("button", name="Run nightly now").click()
    (task,) = queue.tasks("queued").items
    assert (task.name, task.user_id, task.payload) == (
        "library.tasks.run_errand",
        "json",
        {"args": ["json", 7], "kwargs": {}},
    )
    page.get_by_role("button", name="Pause nightly").click()
    expect(row.locator(".fq-flag")).to_have_text("paused")
    (schedule,) = queue.schedules.list()
    assert not schedule.enabled


def test_a_worker_is_stopped_from_its_page(index: Page, queue: FairQueue, start_worker: StartWorker) -> None:
    worker = start_worker("--worker", "w-1", FAIRQUE_WORKER__LEASE_SECONDS="3").wait_ready()
    page = index
    choose(page, "Workers")
    # Its slots have rows, too, from the first heartbeat on.
    row = page.get_by_role("row", name="w-1").filter(has=page.get_by_role("button", name="Stop"))
    expect(row).to_contain_text(f"{worker.children()[0].pid}")
    row.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("will stop, with all its processes")).to_be_visible()
    page.get_by_role("button", name="Stop it").click()
    expect(page.get_by_text("will stop at its next heartbeat.")).to_be_visible()
    assert worker.wait() == 0
    page.reload()
    expect(page.get_by_text("No worker serves this queue")).to_be_visible()
