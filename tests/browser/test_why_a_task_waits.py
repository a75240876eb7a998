"""An operator finds out why one customer's task waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect

from django_fairque.engine.model.task import Task
from tests.browser.page_actions import choose

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.queue.queue import FairQueue


def push(queue: FairQueue, user: str, **options: Any) -> str:
    return queue.push(Task.create(user, 3, {"order": 7}, name="shop.send", **options)).task_id


def paused(queue: FairQueue) -> tuple[str, str]:
    queue.user("acme").pause()
    return push(queue, "acme"), "User acme is paused."


def capped(queue: FairQueue) -> tuple[str, str]:
    queue.user("acme").set_max_running(1)
    push(queue, "acme")
    assert queue.pop("w-1", ["acme"])
    return push(queue, "acme"), "User acme may run 1 task at once, and runs 1."


def behind(queue: FairQueue) -> tuple[str, str]:
    push(queue, "bolt")
    push(queue, "acme")
    return push(queue, "acme"), "1 task of the same user is before it."


def queue_paused(queue: FairQueue) -> tuple[str, str]:
    queue.pause()
    return push(queue, "acme"), "The queue is paused."


def deferred(queue: FairQueue) -> tuple[str, str]:
    first = push(queue, "bolt")
    return push(queue, "acme", depends_on=[first]), f"It waits for 1 task: {first} (queued)."


def scheduled(queue: FairQueue) -> tuple[str, str]:
    return push(queue, "acme", execute_after=time.time() + 7200), "It is scheduled for "


@pytest.mark.parametrize(
    ("arrange", "state"),
    [
        (paused, "queued"),
        (capped, "queued"),
        (behind, "queued"),
        (queue_paused, "queued"),
        (deferred, "deferred"),
        (scheduled, "scheduled"),
    ],
    ids=lambda step: getattr(step, "__name__", ""),
)
def test_the_page_of_a_task_names_the_reason_of_its_wait(
    index: Page, queue: FairQueue, arrange: Callable[[FairQueue], tuple[str, str]], state: str
) -> None:
    push(queue, "cove", task_id="another's")
    task_id, reason = arrange(queue)
    page = index
    choose(page, "Tasks")
    page.get_by_role("navigation", name="States").get_by_role("link", name=state).click()
    page.get_by_label("User").fill("acme")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("link", name="another's")).to_have_count(0)
    page.get_by_role("link", name=task_id).click()
    expect(page.get_by_role("region", name="Why is it waiting?")).to_contain_text(reason)
