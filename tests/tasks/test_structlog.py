"""Variables that structlog has bound: cleared between tasks, or carried to them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars

from django_fairque import TaskResult, Worker, task
from django_fairque.conf import aclose_queues
from django_fairque.integrations.structlog import MAX_VARIABLES_BYTES, StructlogContext
from tests.fixture_types import FairQueue, Redis, Server, Settings

CARRIES = "django_fairque.integrations.structlog.StructlogContext"


@pytest.fixture
def carried(server: Server, redis: Redis, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MIDDLEWARE": [CARRIES]}


def declare() -> tuple[Any, Any]:
    def bind() -> dict[str, Any]:
        found = get_contextvars()
        bind_contextvars(left="by a task")
        return found

    async def bind_on_loop() -> dict[str, Any]:
        return bind()

    return task(name="plain")(bind), task(name="coroutine")(bind_on_loop)


def work() -> None:
    Worker(burst=True, concurrency=1).run()


def test_by_default_a_task_begins_without_variables(queue: FairQueue) -> None:
    with bound_contextvars(request_id="r1"):
        results = [declared.enqueue() for declared in declare() * 2]
    work()
    assert [result.result() for result in results] == [{}, {}, {}, {}]


def test_variables_are_carried_to_tasks_by_the_middleware(carried: None) -> None:
    key = uuid.uuid4()
    results = []
    for number in range(2):
        with bound_contextvars(request_id=f"r{number}", key=key, count=number):
            results += [declared.enqueue() for declared in declare()]
    results += [declared.enqueue() for declared in declare()]
    work()
    expected = [{"request_id": f"r{number}", "key": str(key), "count": number} for number in (0, 0, 1, 1)] + [{}, {}]
    assert [result.result() for result in results] == [
        {**variables, "task_id": result.id, "task_name": name}
        for result, variables, name in zip(results, expected, ["plain", "coroutine"] * 3, strict=True)
    ]


async def test_variables_of_a_coroutine_are_carried_to_its_task(carried: None) -> None:
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
    child = TaskResult(result.result())
    assert child.result() == {
        "request_id": "r1",
        "task_id": child.id,
        "task_name": "plain",
        "parent_task_id": result.id,
    }


def test_a_batch_has_the_variables_that_all_its_tasks_share(carried: None) -> None:
    @task(name="many", batch=10)
    def many(items: list[int]) -> list[Any]:
        return [get_contextvars() for _ in items]

    with bound_contextvars(request_id="r1"):
        results = many.enqueue_many([((n,), {}) for n in range(2)])
    work()
    assert [result.result() for result in results] == [{"request_id": "r1", "task_name": "many"}] * 2


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
