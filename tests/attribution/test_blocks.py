"""`as_user`: whose the tasks are that a block enqueues."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import TaskValidationError, acurrent_user_id, as_user, current_user_id
from django_fairque.conf import aclose_queues

from .conftest import users

if TYPE_CHECKING:
    from django_fairque import FairQueue


def test_tasks_enqueued_in_a_block_belong_to_its_user(queue: FairQueue, note: Any) -> None:
    with as_user("acme"):
        note.enqueue()
        note.enqueue_many([((n,), {}) for n in range(2)])
    note.enqueue()
    assert users(queue) == ["acme", "acme", "acme", "default"]


def test_a_user_named_by_a_task_overrides_the_user_of_the_block(queue: FairQueue, note: Any, note_for: Any) -> None:
    with as_user("acme"):
        note_for.enqueue("bob")
        note.using(user_id="cid").enqueue()
    assert users(queue) == ["bob", "cid"]


def test_the_innermost_block_sets_the_user() -> None:
    assert current_user_id() is None
    with as_user("acme"):
        with as_user("bob"):
            assert current_user_id() == "bob"
            with as_user(None):
                assert current_user_id() is None
        assert current_user_id() == "acme"
        with pytest.raises(ZeroDivisionError), as_user("bob"):
            raise ZeroDivisionError
        assert current_user_id() == "acme"
    assert current_user_id() is None


@pytest.mark.parametrize(
    ("user", "known_as"), [(7, "7"), (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"), ("é", "é")]
)
def test_a_block_takes_integers_uuids_and_text_as_user_ids(user: object, known_as: str) -> None:
    with as_user(user):
        assert current_user_id() == known_as


@pytest.mark.parametrize("user", ["", "x" * 257, True, 1.5, object()])
def test_a_block_refuses_values_that_are_no_user_id(user: object) -> None:
    with pytest.raises(TaskValidationError, match="the user"), as_user(user):
        raise AssertionError("the block must not begin")


def test_a_block_for_a_user_can_be_entered_only_once() -> None:
    block = as_user("acme")
    with block:
        assert current_user_id() == "acme"
    with pytest.raises(RuntimeError, match="make one for each `with`"), block:
        raise AssertionError("the block must not begin")
    assert not callable(block)  # a block that decorates a coroutine function would end before the coroutine runs
    assert current_user_id() is None


async def test_each_coroutine_has_its_own_current_user(queue: FairQueue, note: Any) -> None:
    inside = asyncio.Barrier(3) if hasattr(asyncio, "Barrier") else None

    async def work(user: str) -> str | None:
        with as_user(user):
            if inside is not None:
                await inside.wait()
            await note.aenqueue(user)
            return await acurrent_user_id()

    assert await asyncio.gather(*(work(user) for user in "abc")) == ["a", "b", "c"]
    assert await acurrent_user_id() is None
    assert sorted(users(queue)) == ["a", "b", "c"]
    assert all(task.payload["args"] == [task.user_id] for task in queue.tasks("queued").items)
    await aclose_queues()


def test_a_new_thread_does_not_inherit_the_user_of_the_block(note: Any) -> None:
    found: list[str | None] = ["unasked"]

    def ask() -> None:
        found.append(current_user_id())

    with as_user("acme"):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert found == ["unasked", None]


def test_steps_of_a_pipeline_belong_to_the_user_of_the_block(queue: FairQueue, note: Any, note_for: Any) -> None:
    pipeline = note.s(1) | note_for.s("bob")
    with as_user("acme"):
        pipeline.enqueue()
    pipeline.enqueue()  # steps are calls that have not been sent: whose they are is seen when they are
    assert users(queue) == ["acme", "bob", "default", "bob"]


def test_scheduled_tasks_do_not_belong_to_the_author(queue: FairQueue, note: Any, note_for: Any) -> None:
    with as_user("acme"):
        queue.schedules.add("notes", task=note.s(1), every=60)
        queue.schedules.add("bobs", task=note_for.s("bob"), every=60)
        for name in ("notes", "bobs"):
            queue.schedules.run_now(name)
    assert users(queue) == ["default", "bob"]


def test_equal_unique_tasks_of_two_users_are_two_tasks(queue: FairQueue, note: Any) -> None:
    unique = note.using(unique_for=60)
    ids = set()
    for user in ("acme", "bob", "acme"):
        with as_user(user):
            ids.add(unique.enqueue(1).id)
    assert len(ids) == 2
    assert users(queue) == ["acme", "bob"]
