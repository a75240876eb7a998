"""A person looks at dead letters, corrects and requeues them; the tasks then finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.browser.page_actions import choose
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import StartWorker


def test_an_edited_dead_letter_reaches_the_worker_with_its_new_payload(
    index: Page, queue: FairQueue, start_worker: StartWorker
) -> None:
    payload = {"args": [1, "two"], "kwargs": {}}
    task_id = queue.push(Task.create("acme", 3, payload, name="add", max_retries=0)).task_id
    start_worker("--processes", "1")
    eventually(queue.dlq.count)
    page = index
    choose(page, "Dead letters")
    page.get_by_role("link", name="TypeError").click()
    page.get_by_role("link", name=task_id).click()
    page.get_by_role("button", name="Edit the payload and requeue…").click()
    text = page.get_by_label("Payload, as JSON")
    text.fill(text.input_value().replace('"two"', "2,"))
    page.get_by_role("button", name="Requeue with this payload").click()
    expect(page.get_by_role("alert")).to_be_visible()  # text that is not JSON stays in the form
    text.fill(text.input_value().replace("2,", "2"))
    page.get_by_role("button", name="Requeue with this payload").click()
    expect(page.get_by_text("No dead letters.")).to_be_visible()
    eventually(lambda: queue.get_task(task_id).state.is_ended)
    choose(page, "Tasks")
    page.get_by_role("textbox", name="Id").fill(task_id)
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("heading", name="add finished")).to_be_visible()
    expect(page.locator("section:has(h3:text-is('Result')) pre")).to_have_text("3")


def test_all_dead_letters_of_an_error_are_discarded_after_a_confirmation_with_their_count(
    index: Page, queue: FairQueue
) -> None:
    for _ in range(3):
        bury(queue, "no such address")
    bury(queue, ZeroDivisionError("by zero"))
    page = index
    choose(page, "Dead letters")
    row = page.get_by_role("row", name="no such address")
    row.get_by_role("button", name="Discard…").click()
    expect(page.get_by_role("heading", name="Discard 3 dead letters?")).to_be_visible()
    page.get_by_role("link", name="No, go back").click()
    assert queue.dlq.count() == 4
    row.get_by_role("button", name="Discard…").click()
    page.get_by_role("button", name="Yes, discard them").click()
    expect(page.get_by_text("3 dead letters", exact=False).first).to_be_visible()
    assert queue.dlq.count() == 1


def test_selected_dead_letters_are_discarded(index: Page, queue: FairQueue) -> None:
    entries = [bury(queue) for _ in range(3)]
    page = index
    choose(page, "Dead letters")
    page.get_by_role("link", name="All dead letters, one by one").click()
    page.get_by_role("button", name="Discard selected…").click()
    expect(page.get_by_text("Select at least one dead letter. Nothing was changed.")).to_be_visible()
    for entry in entries[:2]:
        page.get_by_role("checkbox", name=entry).check()
    page.get_by_role("button", name="Discard selected…").click()
    expect(page.get_by_role("heading", name="Discard 2 dead letters?")).to_be_visible()
    page.get_by_role("button", name="Yes, discard them").click()
    expect(page.get_by_text("2 discarded")).to_be_visible()
    assert queue.dlq.count() == 1
