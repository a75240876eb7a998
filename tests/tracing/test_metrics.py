"""OpenTelemetry's metrics of sending and running, as its conventions for messaging have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_fairque import AsyncWorker, BacklogFullError, Discard, Retry, Worker, group, task
from django_fairque.conf import aclose_queues
from django_fairque.integrations import opentelemetry
from django_fairque.outbox.relay import relay
from django_fairque.testing import capture_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

    from .conftest import Metrics, Spans

pytestmark = pytest.mark.django_db(transaction=True)

SENT, SEND_DURATION = "messaging.client.sent.messages", "messaging.client.operation.duration"
CONSUMED, RUN_DURATION = "messaging.client.consumed.messages", "messaging.process.duration"
EARLIER = ["messaging.publish.messages", "messaging.publish.duration", "messaging.deliver.messages"]
EARLIER += ["messaging.deliver.duration"]


def work() -> None:
    Worker(burst=True, concurrency=1).run()


def common() -> dict[str, Any]:
    return {
        "messaging.system": "fairque",
        "messaging.destination.name": "default",
        "fairque.task.name": "note",
        **opentelemetry.server_attributes(),
    }


def test_a_task_is_measured_from_sending_to_its_end(recorded: Metrics, note: Any) -> None:
    note.enqueue()
    work()
    enqueue, run = {"messaging.operation.name": "enqueue"}, {"messaging.operation.name": "run"}
    assert dict(recorded.one(SENT).attributes) == {**common(), **enqueue}
    assert dict(recorded.one(CONSUMED).attributes) == {**common(), **run}
    assert dict(recorded.one(SEND_DURATION).attributes) == {**common(), **enqueue, "messaging.operation.type": "send"}
    assert dict(recorded.one(RUN_DURATION).attributes) == {**common(), **run}
    assert (recorded.one(SENT).value, recorded.one(CONSUMED).value) == (1, 1)
    assert 0 < recorded.one(SEND_DURATION).sum < 5
    assert 0 < recorded.one(RUN_DURATION).sum < 5
    assert {recorded.instruments[name].unit for name in (SENT, CONSUMED)} == {"{message}"}
    assert {recorded.instruments[name].unit for name in (SEND_DURATION, RUN_DURATION)} == {"s"}
    buckets = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert recorded.one(SEND_DURATION).explicit_bounds == buckets
    assert recorded.one(RUN_DURATION).explicit_bounds == buckets
    assert [recorded(name) for name in EARLIER] == [[], [], [], []]


async def test_tasks_of_coroutines_are_counted(recorded: Metrics, note: Any) -> None:
    await note.aenqueue()
    await AsyncWorker(burst=True, concurrency=1).run()
    assert (recorded.one(SENT).value, recorded.one(CONSUMED).value) == (1, 1)
    await aclose_queues()


def test_a_graph_is_sent_in_one_operation(recorded: Metrics, note: Any, project: None) -> None:
    @task(name="other")
    def other() -> None: ...

    group([note.s(1), note.s(2), other.s()]).enqueue()
    assert {point.attributes["fairque.task.name"]: point.value for point in recorded(SENT)} == {"note": 2, "other": 1}
    assert recorded.one(SEND_DURATION).count == 1
    assert "fairque.task.name" not in recorded.one(SEND_DURATION).attributes


def test_a_batch_counts_as_one_run(recorded: Metrics, project: None) -> None:
    @task(name="batch", batch=10, batch_wait=0.2)
    def batch(items: list[int]) -> None: ...

    batch.enqueue_many([((n,), {}) for n in range(3)])
    work()
    assert recorded.one(CONSUMED).value == 3
    assert recorded.one(RUN_DURATION).count == 1


def test_metrics_of_failures_have_the_error_s_class(recorded: Metrics, project: None) -> None:
    @task(name="fails", max_retries=0)
    def fails(error: str) -> None:
        raise {"retry": Retry(60), "discard": Discard()}.get(error, ValueError("no"))

    for error in ("retry", "discard", "other"):
        fails.enqueue(error)
    work()
    assert {point.attributes.get("error.type"): point.value for point in recorded(CONSUMED)} == {
        None: 2,
        "ValueError": 1,
    }
    assert {point.attributes.get("error.type"): point.count for point in recorded(RUN_DURATION)} == {
        None: 2,
        "ValueError": 1,
    }


def test_a_task_that_was_not_sent_is_counted_with_its_error(recorded: Metrics, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1}}
    note.enqueue()
    with pytest.raises(BacklogFullError):
        note.enqueue()
    assert {point.attributes.get("error.type"): point.value for point in recorded(SENT)} == {
        None: 1,
        "BacklogFullError": 1,
    }


@pytest.mark.parametrize("outbox", [False, True])
def test_tasks_count_as_sent_at_the_commit(recorded: Metrics, note: Any, settings: Settings, outbox: bool) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": outbox}
    with transaction.atomic():
        note.enqueue(1)
        note.enqueue(2)
        assert recorded(SENT) == []
    relay("default")  # the outbox is empty
    assert recorded.one(SENT).value == 2
    assert recorded.one(SEND_DURATION).count == 1


def test_captured_tasks_are_not_counted_as_sent(recorded: Metrics, note: Any) -> None:
    with capture_tasks():
        note.enqueue()
    assert recorded(SENT) == []


def test_no_metrics_are_recorded_while_tracing_is_off(recorded: Metrics, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": False}
    note.enqueue()
    work()
    assert recorded(SENT) == recorded(CONSUMED) == recorded(RUN_DURATION) == recorded(SEND_DURATION) == []


@pytest.fixture
def opt_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", request.param)
    for cached in (opentelemetry.has_earlier_names, opentelemetry._instruments):
        cached.cache_clear()
    yield
    for cached in (opentelemetry.has_earlier_names, opentelemetry._instruments):
        cached.cache_clear()


@pytest.mark.parametrize("opt_in", ["http, messaging/dup", "messaging,messaging/dup"], indirect=True)
def test_metrics_can_also_have_their_earlier_names(opt_in: None, recorded: Metrics, spans: Spans, note: Any) -> None:
    note.enqueue()
    work()
    assert [len(recorded(name)) for name in (SENT, SEND_DURATION, CONSUMED, RUN_DURATION)] == [1, 1, 1, 1]
    assert [len(recorded(name)) for name in EARLIER] == [1, 1, 1, 1]
    operations = [(span.attributes or {})["messaging.operation"] for span in spans()]
    assert operations == ["publish", "deliver"]
    assert [span.name for span in spans()] == ["enqueue default", "run default"]


@pytest.mark.parametrize("opt_in", ["messaging", "http/dup", ""], indirect=True)
def test_metrics_have_no_earlier_names_by_default(opt_in: None, recorded: Metrics, spans: Spans, note: Any) -> None:
    note.enqueue()
    work()
    assert [len(recorded(name)) for name in (SENT, SEND_DURATION, CONSUMED, RUN_DURATION)] == [1, 1, 1, 1]
    assert [recorded(name) for name in EARLIER] == [[], [], [], []]
    assert not any("messaging.operation" in (span.attributes or {}) for span in spans())
