"""Tasks that a task enqueues are its user's, wherever it runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import AsyncWorker, Worker, as_user, current_user_id, get_queue, task
from django_fairque.conf import aclose_queues, close_queues
from django_fairque.testing import capture_tasks, eager

from .conftest import users

if TYPE_CHECKING:
    from django_fairque import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)

PARENTS = ("plain", "awaited", "batch", "abatch")


@pytest.fixture
def parents(note: Any) -> dict[str, Any]:
    """Tasks of each kind that enqueue another, and one for somebody else."""

    @task(name="plain")
    def plain(item: int) -> str | None:
        note.enqueue()
        with as_user("else"):
            note.enqueue()
        return current_user_id()

    @task(name="awaited")
    async def awaited(item: int) -> str | None:
        await asyncio.sleep(0)
        await note.aenqueue()
        with as_user("else"):
            await note.aenqueue()
        return current_user_id()

    @task(name="batch", batch=10, batch_wait=0.2)
    def batch(items: list[int]) -> list[str | None]:
        note.enqueue()
        with as_user("else"):
            note.enqueue()
        return [current_user_id()] * len(items)

    @task(name="abatch", batch=10, batch_wait=0.2)
    async def abatch(items: list[int]) -> list[str | None]:
        await note.aenqueue()
        with as_user("else"):
            await note.aenqueue()
        return [current_user_id()] * len(items)

    return {"plain": plain, "awaited": awaited, "batch": batch, "abatch": abatch}


def work() -> None:
    """Run the queue dry with a worker in this process."""
    Worker(burst=True, concurrency=2).run()


def ended(queue: FairQueue) -> list[str]:
    return sorted(task.user_id for task in queue.tasks("finished").items if task.name == "note")


@pytest.mark.parametrize("name", PARENTS)
def test_children_of_a_task_belong_to_its_user(queue: FairQueue, parents: dict[str, Any], name: str) -> None:
    result = parents[name].using(user_id="acme").enqueue(1)
    work()
    assert (result.result(), ended(queue)) == ("acme", ["acme", "else"])


@pytest.mark.parametrize("name", PARENTS)
async def test_async_workers_keep_the_user_of_child_tasks(queue: FairQueue, parents: dict[str, Any], name: str) -> None:
    parents[name].using(user_id="acme").enqueue(1)
    with as_user("whoever started the worker"):
        await AsyncWorker(burst=True, concurrency=2).run()
    assert ended(queue) == ["acme", "else"]
    (parent,) = [task for task in queue.tasks("finished").items if task.name == name]
    assert parent.result == "acme"
    await aclose_queues()


@pytest.mark.parametrize("name", ["batch", "abatch"])
@pytest.mark.parametrize(("owners", "whose"), [(["acme", "acme"], "acme"), (["acme", "bob"], "default")])
def test_children_of_a_batch_have_a_user_if_all_its_items_belong_to_that_user(
    queue: FairQueue, parents: dict[str, Any], name: str, owners: list[str], whose: str
) -> None:
    results = [parents[name].using(user_id=owner).enqueue(n) for n, owner in enumerate(owners)]
    work()
    assert ended(queue) == sorted([whose, "else"])
    assert {result.result() for result in results} == {None if whose == "default" else whose}


@pytest.mark.parametrize("name", PARENTS)
def test_captured_children_of_a_task_belong_to_its_user(note: Any, parents: dict[str, Any], name: str) -> None:
    with capture_tasks() as captured:
        parents[name].using(user_id="acme").enqueue(1)
        with as_user("the test"):
            captured.run()
    assert [call.user_id for call in captured.of(note)] == ["acme", "else"]


@pytest.mark.parametrize("name", PARENTS)
def test_children_of_an_eager_task_belong_to_its_user(note: Any, parents: dict[str, Any], name: str) -> None:
    with eager() as captured, as_user("acme"):
        parents[name].enqueue(1)
        parents[name].using(user_id="bob").enqueue(1)
        assert current_user_id() == "acme"
    assert [call.user_id for call in captured.of(note)] == ["acme", "else", "bob", "else"]


def test_a_retried_task_and_its_children_keep_their_user(queue: FairQueue, note: Any) -> None:
    tries = []

    @task(name="unsure")
    def unsure() -> None:
        tries.append(current_user_id())
        note.enqueue()
        if len(tries) < 2:
            raise ValueError

    @task(name="spawns")
    def spawns() -> None:
        unsure.enqueue()

    with as_user("acme"):
        spawns.enqueue()
    Worker(burst=True, concurrency=1).run()
    while len(tries) < 2:  # a burst does not wait for tasks that are due later
        Worker(burst=True, concurrency=1).run()
    assert tries == ["acme", "acme"]
    assert set(ended(queue) + users(get_queue())) == {"acme"}
    close_queues()


def test_the_steps_of_a_run_keep_their_users(queue: FairQueue, parents: dict[str, Any]) -> None:
    with as_user("acme"):
        run = (parents["plain"].s(1) >> parents["plain"].using(user_id="bob").s(2)).enqueue()
    work()
    assert [result.result() for result in run.results] == ["acme", "bob"]
