"""Sentry's spans around sending and running, and the trace that they are part of."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from django.db import transaction

from django_fairque import TaskMiddleware, Worker, current_task, get_queue, task
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.trace_context import Trace
from django_fairque.tasks.tracing import in_trace

if TYPE_CHECKING:
    from pytest_django import Settings

    from .conftest import Sent, StartSentry

pytestmark = pytest.mark.django_db(transaction=True)

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def work() -> None:
    Worker(burst=True, concurrency=1).run()


@pytest.fixture
def note(sent: Sent) -> Any:
    @task(name="note", max_retries=0)
    def note(*args: Any) -> dict[str, str]:
        return current_task().headers

    return note


def test_spans_have_the_attributes_of_sentry_s_queues(sent: Sent, note: Any) -> None:
    with sentry_sdk.start_transaction(name="view", op="http.server"):
        result = note.using(user_id="acme").enqueue("x" * 100)
    work()
    (publish,), (process,) = sent.spans("queue.publish"), sent.spans("queue.process")
    common = {
        "messaging.system": "fairque",
        "messaging.destination.name": "default",
        "messaging.message.id": result.id,
        "messaging.message.body.size": len(get_queue().get_task(result.id).payload_bytes),
    }
    assert common.items() <= publish["data"].items()
    assert common.items() <= process["data"].items()
    assert process["data"]["messaging.message.retry.count"] == 0
    assert 0 <= process["data"]["messaging.message.receive.latency"] < 60_000
    assert {publish["description"], process["description"]} == {"note"}
    assert {publish["origin"], process["origin"]} == {"auto.queue.fairque"}
    view, run = sent.transactions
    assert run["transaction"] == "note"
    assert run["contexts"]["trace"]["op"] == "queue.task.fairque"
    assert run["contexts"]["trace"]["trace_id"] == view["contexts"]["trace"]["trace_id"]
    assert run["contexts"]["trace"]["parent_span_id"] == publish["span_id"]


async def test_a_task_enqueued_by_a_coroutine_continues_its_trace(sent: Sent, note: Any) -> None:
    with sentry_sdk.start_transaction(name="view", op="http.server"):
        await note.aenqueue()
    work()
    view, run = sent.transactions
    assert run["contexts"]["trace"]["trace_id"] == view["contexts"]["trace"]["trace_id"]
    await aclose_queues()


def test_many_tasks_enqueued_together_have_one_publish_span(sent: Sent, note: Any) -> None:
    with sentry_sdk.start_transaction(name="view", op="http.server"), transaction.atomic():
        note.enqueue_many([((n,), {}) for n in range(3)])
    work()
    (publish,) = sent.spans("queue.publish")
    assert publish["data"]["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in publish["data"]
    assert len(sent.spans("queue.process")) == 3
    assert len({transaction["contexts"]["trace"]["trace_id"] for transaction in sent.transactions}) == 1


def test_errors_are_in_the_trace_of_a_request_without_spans(start_sentry: StartSentry) -> None:
    sent = start_sentry(traces_sample_rate=None)

    @task(name="fails", max_retries=0)
    def fails() -> None:
        raise ValueError("no")

    with sentry_sdk.isolation_scope() as scope:
        sentry_sdk.continue_trace({"sentry-trace": f"{TRACE_ID}-{SPAN_ID}"})
        assert scope.get_traceparent() is not None
        fails.enqueue()
    work()
    assert sent.event["contexts"]["trace"]["trace_id"] == TRACE_ID
    assert sent.transactions == []


def test_a_task_with_only_a_w3c_trace_continues_it(sent: Sent, note: Any) -> None:
    client = sentry_sdk.get_client()
    sentry_sdk.get_global_scope().set_client(None)
    with in_trace(Trace(f"00-{TRACE_ID}-{SPAN_ID}-01")):
        note.enqueue()
    sentry_sdk.get_global_scope().set_client(client)
    work()
    (run,) = sent.transactions
    trace = run["contexts"]["trace"]
    assert (trace["trace_id"], trace["parent_span_id"]) == (TRACE_ID, SPAN_ID)


def test_a_task_without_a_trace_starts_a_new_one(sent: Sent, note: Any) -> None:
    client = sentry_sdk.get_client()
    sentry_sdk.get_global_scope().set_client(None)
    note.enqueue()
    note.enqueue()
    sentry_sdk.get_global_scope().set_client(client)
    work()
    assert len({run["contexts"]["trace"]["trace_id"] for run in sent.transactions}) == 2


@pytest.mark.parametrize("is_one_trace", [True, False])
def test_a_batch_continues_a_trace_if_all_its_items_have_it(sent: Sent, is_one_trace: bool) -> None:
    @task(name="batch", batch=5, batch_wait=0.2)
    def batch(items: list[int]) -> None: ...

    if is_one_trace:
        with sentry_sdk.start_transaction(name="view", op="http.server"):
            batch.enqueue_many([((n,), {}) for n in range(2)])
    else:
        for n in range(2):
            with sentry_sdk.start_transaction(name="view", op="http.server"):
                batch.enqueue(n)
    work()
    *views, run = sent.transactions
    traces = {view["contexts"]["trace"]["trace_id"] for view in views}
    assert (run["contexts"]["trace"]["trace_id"] in traces) is is_one_trace
    (process,) = sent.spans("queue.process")
    assert process["data"]["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in process["data"]


def test_the_baggage_of_other_middleware_stays(sent: Sent, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": [f"{__name__}.Baggage"]}
    with sentry_sdk.start_transaction(name="view", op="http.server"):
        result = note.enqueue()
    work()
    parts = result.result()["baggage"].split(",")
    assert "plan=gold" in parts
    assert any(part.startswith("sentry-trace_id=") for part in parts)


class Baggage(TaskMiddleware):
    """Inside of Sentry's, because that is the outermost."""

    def around_send(self, send: Any) -> Any:
        others = send.headers.get("baggage")
        send.headers["baggage"] = f"{others},plan=gold" if others else "plan=gold"
        return super().around_send(send)


def test_a_sampler_is_given_the_task(start_sentry: StartSentry) -> None:
    seen: list[dict[str, Any]] = []

    def sampler(context: dict[str, Any]) -> float:
        seen.append(context.get("fairque_task", {}))
        return 0.0

    sent = start_sentry(traces_sampler=sampler, traces_sample_rate=None)

    @task(name="note")
    def note() -> None: ...

    note.using(user_id="acme").enqueue()
    work()
    assert {"name": "note", "queue": "default", "user_id": "acme"} in seen
    assert sent.transactions == []


@pytest.mark.skipif(find_spec("sentry_sdk.traces") is None, reason="this version of sentry-sdk streams no spans")
def test_streamed_spans_have_the_attributes_of_queues(start_sentry: StartSentry) -> None:
    sent = start_sentry(trace_lifecycle="stream")

    @task(name="fails", max_retries=0)
    def fails() -> None:
        raise ValueError("no")

    with sentry_sdk.traces.start_span(name="view", parent_span=None):
        result = fails.enqueue()
    work()
    sentry_sdk.flush()
    spans = {
        span["attributes"].get("sentry.op", {}).get("value"): span
        for kind, content in sent.items
        if kind == "span"
        for span in content["items"]
    }
    assert set(spans) == {None, "queue.publish", "queue.task.fairque", "queue.process"}
    assert len({span["trace_id"] for span in spans.values()}) == 1
    assert spans["queue.task.fairque"]["parent_span_id"] == spans["queue.publish"]["span_id"]
    process = {key: attribute["value"] for key, attribute in spans["queue.process"]["attributes"].items()}
    assert process["messaging.message.id"] == result.id
    assert process["messaging.message.retry.count"] == 0
    assert process["messaging.message.receive.latency"] >= 0
    publish = {key: attribute["value"] for key, attribute in spans["queue.publish"]["attributes"].items()}
    assert publish["messaging.message.id"] == result.id
    assert publish["messaging.message.body.size"] > 0
    assert spans["queue.process"]["status"] == "error"
    assert sent.event["contexts"]["trace"]["trace_id"] == spans["queue.process"]["trace_id"]
