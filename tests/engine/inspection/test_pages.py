"""A page as the sequence of its items that it is."""

from __future__ import annotations

import pytest

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many, read_pages, task


@pytest.fixture
def filled(queue: FairQueue) -> FairQueue:
    queue.push_batch([task("ann"), task("bob"), task("cem")], now=NOW)
    return queue


def test_a_page_is_iterated_counted_and_indexed(filled: FairQueue) -> None:
    page = filled.users()
    assert list(page) == page.items == ["ann", "bob", "cem"]
    assert (len(page), page[0], page[-1], page[1:]) == (3, "ann", "cem", ["bob", "cem"])
    assert "bob" in page
    with pytest.raises(IndexError):
        page[3]


def test_all_lists_of_a_queue_return_pages(filled: FairQueue) -> None:
    lease = pop(filled)
    filled.fail(lease, "x", retry=False, now=NOW)
    assert [task.user_id for task in filled.tasks("queued")] == ["bob", "cem"]
    assert [entry.original_task.task_id for entry in filled.dlq.list()] == [lease.task_id]
    assert [letter.task_id for letter in filled.dlq.letters()] == [lease.task_id]
    filled.user("ann").set_organization("acme", now=NOW)
    assert list(filled.organizations()) == ["acme"]
    assert list(filled.organization("acme").members()) == ["ann"]


def test_an_empty_page_is_false_and_may_have_a_next_page(filled: FairQueue) -> None:
    assert not filled.dlq.list()
    page = filled.tasks("queued", user_id="cem", limit=1)
    assert not page
    assert page.cursor is not None
    assert filled.users(limit=1)


def test_all_tasks_are_read_page_by_page(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 25) + push_many(queue, "b", 5, execute_after=NOW + 9)
    seen = read_pages(lambda cursor: queue.tasks(limit=7, cursor=cursor), 7)
    assert sorted(task.task_id for task in seen) == sorted(ids)
    assert len(queue.tasks(state="queued", user_id="a").items) == 25
