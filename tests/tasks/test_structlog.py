"""Variables that structlog has bound: cleared between tasks, or carried to them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

from django_fairque import Worker, task
from django_fairque.conf import aclose_queues
from django_fairque.integrations.structlog import MAX_VARIABLES_BYTES, StructlogContext

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

CARRIES = "django_fairque.integrations.structlog.StructlogContext"


@pytest.fixture
def carried(server: Server, redis: Redis, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MIDDLEWARE": [CARRIES]}


def declare() -> tuple[Any, Any]:
    @task(name="plain")
    def plain() -> dict[str, Any]:
        found = get_contextvars()
        bind_contextvars(left="by a task")
        return found

    @task(name="coroutine")
    async def coroutine() -> dict[str, Any]:
        found = get_contextvars()
        bind_contextvars(left="by a task")
        return found

    return plain, coroutine


def work() -> None:
    Worker(burst=True, concurrency=1).run()


def test_by_default_a_task_begins_without_variables(queue: FairQueue) -> None:
    with bound_contextvars(request_id="r1"):
        results = [each.enqueue() for each in declare() * 2]
    work()
    assert [each.result() for each in results] == [{}, {}, {}, {}]


def test_they_are_carried_if_the_setting_says_so(carried: None) -> None:
    key = uuid.uuid4()
    results = []
    for number in range(2):
        with bound_contextvars(request_id=f"r{number}", key=key, count=number):
            results += [each.enqueue() for each in declare()]
    results += [each.enqueue() for each in declare()]
    work()
    expected = [{"request_id": f"r{number}", "key": str(key), "count": number} for number in (0, 0, 1, 1)] + [{}, {}]
    assert [each.result() for each in results] == [
        {**variables, "task_id": each.id, "task_name": name}
        for each, variables, name in zip(results, expected, ["plain", "coroutine"] * 3, strict=True)
    ]


async def test_from_a_coroutine(carried: None) -> None:
    plain, _ = declare()
    with bound_contextvars(request_id="r1"):
        result = await plain.aenqueue()
    work()
    assert (await result.aresult())["request_id"] == "r1"
    await aclose_queues()


def test_a_task_that_a_task_has_enqueued_names_its_parent(carried: None) -> None:
    plain, _ = declare()

    @task(name="parent")
    def parent() -> str:
        return str(plain.enqueue().id)

    with bound_contextvars(request_id="r1", task_id="of somebody else"):
        result = parent.enqueue()
    work()
    from django_fairque.tasks.results import TaskResult

    child = TaskResult(result.result())
    assert child.result() == {
        "request_id": "r1",
        "task_id": child.id,
        "task_name": "plain",
        "parent_task_id": result.id,
    }


def test_a_batch_has_what_all_its_tasks_share(carried: None) -> None:
    @task(name="many", batch=10)
    def many(items: list[int]) -> list[Any]:
        return [get_contextvars() for _ in items]

    with bound_contextvars(request_id="r1"):
        results = many.enqueue_many([((n,), {}) for n in range(2)])
    work()
    assert [each.result() for each in results] == [{"request_id": "r1", "task_name": "many"}] * 2


def test_large_variables_are_left_out(carried: None, caplog: pytest.LogCaptureFixture) -> None:
    plain, _ = declare()
    with bound_contextvars(request_id="r1", body="x" * MAX_VARIABLES_BYTES):
        result = plain.enqueue()
    assert "the variable 'body' of structlog is left out of a task: it takes 4098 bytes" in caplog.text
    work()
    assert result.result().keys() == {"request_id", "task_id", "task_name"}


@pytest.mark.parametrize("header", ["no JSON", "[1]", "null"])
def test_a_header_that_somebody_has_changed_is_ignored(queue: FairQueue, header: str) -> None:
    @task(name="plain", middleware=[StructlogContext])
    def plain() -> list[str]:
        return sorted(get_contextvars())

    made = plain.build((), {})
    queue.push(made.with_payload({"args": [], "kwargs": {}, "about": {"headers": {"structlog": header}}}))
    work()
    assert queue.get_task(made.task_id).result == ["task_id", "task_name"]
