"""Spans of OpenTelemetry around sending and running, as its conventions for messaging have them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NoOpTracer, SpanKind, StatusCode

from django_fairque import (
    AsyncWorker,
    BacklogFullError,
    Discard,
    Retry,
    Worker,
    get_queue,
    group,
    task,
)
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.trace_context import Trace
from django_fairque.integrations import opentelemetry
from django_fairque.tasks.tracing import in_trace
from django_fairque.testing import eager

from .conftest import traceparent_of
from .test_format import PARENT, SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from pytest_django import Settings

    from .conftest import Spans

pytestmark = pytest.mark.django_db(transaction=True)

SEND, RUN = "enqueue default", "run default"


def work() -> None:
    Worker(burst=True, concurrency=1).run()


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}"


def place_of(span: ReadableSpan) -> str:
    return traceparent_of(span)[3:52]


def trace_id_of(span: ReadableSpan) -> str:
    return place_of(span)[:32]


def test_a_task_has_spans_from_sending_to_its_end(spans: Spans, note: Any) -> None:
    with trace.get_tracer("project").start_as_current_span("view") as view:
        result = note.using(user_id="acme").enqueue()
    work()
    sent, ran = spans.one(SEND), spans.one(RUN)
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert parent_of(sent) == traceparent_of(view)[3:52]
    assert parent_of(ran) == place_of(sent)
    assert result.result() == traceparent_of(sent)
    common = {
        "messaging.system": "fairque",
        "messaging.destination.name": "default",
        "messaging.message.id": result.id,
        "fairque.task.name": "note",
        "fairque.user.id": "acme",
        **opentelemetry.server_attributes(),
    }
    enqueued = {"messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
    run = {"messaging.operation.name": "run", "messaging.operation.type": "process", "fairque.task.attempt": 1}
    assert dict(sent.attributes or {}) == {**common, **enqueued}
    assert dict(ran.attributes or {}) == {**common, **run}
    assert sent.status.status_code is ran.status.status_code is StatusCode.UNSET
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_task_continues_its_request_s_trace(spans: Spans, note: Any) -> None:
    with in_trace(Trace(PARENT, "a=1")):
        result = note.enqueue()
    assert parent_of(spans.one(SEND)) == f"{TRACE_ID}-{SPAN_ID}"
    task = get_queue().get_task(result.id)
    assert (task.traceparent, task.tracestate) == (traceparent_of(spans.one(SEND)), "a=1")


def test_a_task_without_a_trace_starts_one(spans: Spans, note: Any) -> None:
    note.enqueue()
    assert parent_of(spans.one(SEND)) == ""
    get_queue().push(get_queue().get_task(note.enqueue().id).set_trace(Trace()).model_copy(update={"task_id": "alone"}))
    work()
    assert sorted(map(parent_of, spans(RUN))) == sorted(["", *map(place_of, spans(SEND))])


def test_spans_of_the_task_and_its_tasks_are_children_of_the_run(spans: Spans, note: Any) -> None:
    @task(name="spawns")
    def spawns() -> None:
        with trace.get_tracer("project").start_as_current_span("query"):
            note.enqueue()

    spawns.enqueue()
    work()
    first, second = spans(SEND)
    run = next(span for span in spans(RUN) if (span.attributes or {})["fairque.task.name"] == "spawns")
    assert [place_of(run), place_of(spans.one("query"))] == [parent_of(spans.one("query")), parent_of(second)]
    assert len(set(map(trace_id_of, spans()))) == 1
    assert parent_of(first) == ""


@pytest.mark.parametrize("worker", ["threads", "awaited"])
async def test_spans_of_coroutines_are_nested_correctly(spans: Spans, note: Any, worker: str) -> None:
    @task(name="aspawns")
    async def aspawns() -> None:
        await asyncio.sleep(0)
        await note.aenqueue()

    await asyncio.gather(*(aspawns.aenqueue() for _ in range(2)))
    if worker == "threads":
        await asyncio.to_thread(work)
    else:
        await AsyncWorker(burst=True, concurrency=2).run()
    assert (len(spans(SEND)), len(spans(RUN))) == (4, 4)
    ids = [trace_id_of(span) for span in spans()]
    assert {ids.count(trace_id) for trace_id in ids} == {4}  # two traces: sent, ran, sent, ran
    await aclose_queues()


def test_tasks_enqueued_together_have_one_span_for_sending(spans: Spans, note: Any) -> None:
    note.enqueue_many([((n,), {}) for n in range(3)])
    group([note.s(1), note.using(user_id="bob").s(2)]).enqueue()
    work()
    many, graph = spans(SEND)
    assert (many.attributes or {})["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in (many.attributes or {})
    assert (many.attributes or {})["fairque.user.id"] == "default"
    assert "fairque.user.id" not in (graph.attributes or {})
    assert sorted(map(parent_of, spans(RUN))) == sorted([place_of(many)] * 3 + [place_of(graph)] * 2)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_has_links_to_its_items(spans: Spans, project: None, is_async: bool) -> None:
    if is_async:

        @task(name="batch", batch=10, batch_wait=0.2)
        async def batch(items: list[int]) -> None: ...
    else:

        @task(name="batch", batch=10, batch_wait=0.2)
        def batch(items: list[int]) -> None: ...

    results = [batch.enqueue(n) for n in range(3)]
    work()
    ran = spans.one(RUN)
    assert parent_of(ran) == ""
    linked = {(link.attributes or {})["messaging.message.id"]: f"{link.context.span_id:016x}" for link in ran.links}
    assert linked == {result.id: place_of(span)[-16:] for result, span in zip(results, spans(SEND), strict=True)}
    assert (ran.attributes or {})["messaging.batch.message_count"] == 3
    batch.enqueue(1)
    work()
    assert parent_of(spans(RUN)[-1]) == place_of(spans(SEND)[-1])  # a batch of one item continues its trace


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_are_recorded_and_each_attempt_is_a_span(spans: Spans, project: None, is_async: bool) -> None:
    def fails() -> None:
        raise ValueError("no")

    async def afails() -> None:
        raise ValueError("no")

    failing: Any = task(name="fails", max_retries=1)(afails if is_async else fails)
    result = failing.enqueue()
    while len(spans(RUN)) < 2:
        work()
    for attempt, span in enumerate(spans(RUN), 1):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: no")
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert (span.attributes or {})["fairque.task.attempt"] == attempt
        (event,) = span.events
        assert (event.attributes or {})["exception.message"] == "no"
        assert parent_of(span) == place_of(spans.one(SEND))
    assert all("around_running" not in error.traceback for error in result.errors)
    assert len(result.errors[0].traceback.split("File ")) == 2  # the traceback begins in the task's code


def test_a_time_limit_is_an_error(spans: Spans, project: None) -> None:
    @task(name="long", timeout=0.05, max_retries=0)
    async def long() -> None:
        await asyncio.Event().wait()

    long.enqueue()
    work()
    assert spans.one(RUN).status.status_code is StatusCode.ERROR


@pytest.mark.parametrize(("error", "word"), [(Retry(60), "retry"), (Discard("no"), "discard")])
def test_a_retry_or_discard_is_no_error_of_its_span(spans: Spans, project: None, error: Exception, word: str) -> None:
    @task(name="asks")
    def asks() -> None:
        raise error

    asks.enqueue()
    work()
    span = spans.one(RUN)
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["fairque.task.asked_for"] == word
    assert span.events == ()


def test_a_task_that_could_not_be_sent_has_an_error_span(spans: Spans, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
    note.enqueue()
    with pytest.raises(BacklogFullError):
        note.enqueue()
    assert [span.status.status_code for span in spans(SEND)] == [StatusCode.UNSET, StatusCode.ERROR]
    assert (spans(SEND)[1].attributes or {})["error.type"] == "BacklogFullError"


def test_the_span_of_an_eager_task_is_a_child_of_its_send_span(spans: Spans, note: Any) -> None:
    with eager():
        note.enqueue()
    assert parent_of(spans.one(RUN)) == place_of(spans.one(SEND))


def test_a_trace_is_passed_on_without_an_sdk(spans: Spans, note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opentelemetry, "_tracer", NoOpTracer)
    with in_trace(Trace(PARENT)):
        result = note.enqueue()
    alone = note.enqueue()
    work()
    assert (result.result(), alone.result()) == (PARENT, "")
    assert spans() == []


def test_no_spans_are_recorded_while_tracing_is_off(spans: Spans, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": False}
    note.enqueue()
    work()
    assert spans() == []


def test_every_attribute_is_documented(spans: Spans) -> None:
    source = Path(opentelemetry.__file__).read_text()
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "metrics-and-signals.md").read_text()
    names = set(re.findall(r'"((?:messaging|fairque|error|server)\.[a-z._]+)"', source))
    assert len(names) > 8
    assert {name for name in names if f"`{name}`" not in page} == set()
