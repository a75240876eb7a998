"""OpenTelemetry's baggage goes with a task, and on to the tasks that it enqueues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from opentelemetry import baggage, context, propagate
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from django_fairque import AsyncWorker, TaskResult, Worker, current_task, task
from django_fairque.conf import aclose_queues
from django_fairque.testing import eager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def tracing(project: None, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": True}


@pytest.fixture
def plan() -> Iterator[None]:
    token = context.attach(baggage.set_baggage("plan", "gold, really = 1 ünit"))
    yield
    context.detach(token)


@pytest.fixture
def read() -> Any:
    @task(name="read")
    def read() -> dict[str, Any]:
        return dict(baggage.get_all())

    return read


@pytest.fixture
def aread() -> Any:
    @task(name="aread")
    async def aread() -> dict[str, Any]:
        return dict(baggage.get_all())

    return aread


GOLD = {"plan": "gold, really = 1 ünit"}


def work() -> None:
    Worker(burst=True, concurrency=1).run()


def test_baggage_reaches_the_task(plan: None, read: Any, aread: Any) -> None:
    with transaction.atomic():
        results = [read.enqueue(), aread.enqueue(), *read.enqueue_many([((), {})] * 2)]
    work()
    assert [result.result() for result in results] == [GOLD] * 4


async def test_baggage_reaches_a_task_enqueued_by_a_coroutine(read: Any, aread: Any) -> None:
    token = context.attach(baggage.set_baggage("plan", "silver"))
    results = [await read.aenqueue(), await aread.aenqueue()]
    context.detach(token)
    await AsyncWorker(burst=True, concurrency=1).run()
    assert [await result.aresult() for result in results] == [{"plan": "silver"}] * 2
    await aclose_queues()


def test_baggage_reaches_children_of_a_task(plan: None, read: Any) -> None:
    @task(name="passes")
    def passes() -> str:
        return str(read.enqueue().id)

    parent = passes.enqueue()
    work()
    assert TaskResult[Any](str(parent.result())).result() == GOLD


@pytest.mark.parametrize("plans", [["gold", "gold"], ["gold", "silver"]])
def test_a_batch_has_the_baggage_common_to_all_items(plans: list[str]) -> None:
    @task(name="batch", batch=5, batch_wait=0.2)
    def batch(items: list[int]) -> list[dict[str, Any]]:
        return [dict(baggage.get_all())] * len(items)

    results = []
    for number, plan in enumerate(plans):
        token = context.attach(baggage.set_baggage("plan", plan))
        results.append(batch.enqueue(number))
        context.detach(token)
    work()
    assert results[0].result() == ({"plan": "gold"} if len(set(plans)) == 1 else {})


def test_baggage_reaches_an_eager_task(plan: None, read: Any) -> None:
    with eager():
        assert read.enqueue().result() == GOLD


def test_a_task_without_baggage_has_no_headers(read: Any) -> None:
    @task(name="headers")
    def headers() -> dict[str, str]:
        return current_task().headers

    results = [read.enqueue(), headers.enqueue()]
    work()
    assert [result.result() for result in results] == [{}, {}]


def test_baggage_beyond_the_size_limit_is_dropped(read: Any) -> None:
    token = context.attach(baggage.set_baggage("plan", "x" * 9000))
    result = read.enqueue()
    context.detach(token)
    work()
    assert result.result() == {}


def test_baggage_is_not_sent_if_the_project_does_not_propagate_it(plan: None, read: Any) -> None:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([TraceContextTextMapPropagator()]))
    try:
        result = read.enqueue()
    finally:
        propagate.set_global_textmap(before)
    work()
    assert result.result() == {}


def test_baggage_is_not_sent_while_tracing_is_off(plan: None, read: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": False}
    result = read.enqueue()
    work()
    assert result.result() == {}
