"""Which trace a task belongs to: the request's, the task's that enqueued it, or OpenTelemetry's open span."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import AsyncClient
from opentelemetry import trace

from django_fairque import AsyncWorker, Worker, current_task, get_queue, group, task
from django_fairque.conf import aclose_queues
from django_fairque.engine.model.trace_context import Trace
from django_fairque.tasks.tracing import in_trace
from django_fairque.testing import capture_tasks, eager

from .conftest import traceparent_of
from .test_format import PARENT, SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from django.test import Client
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]

OTHER = f"00-{TRACE_ID[::-1]}-{SPAN_ID}-00"


def traces(state: str = "queued", name: str = "note") -> list[str]:
    tasks = sorted(get_queue().tasks(state).items, key=lambda task: task.created_at)
    return [task.traceparent for task in tasks if task.name == name]


def test_a_task_has_the_trace_of_its_request(client: Client, note: Any) -> None:
    client.get("/enqueues/", headers={"traceparent": PARENT, "tracestate": "a=1, b=2"})
    client.get("/enqueues/")
    client.get("/enqueues/", headers={"traceparent": PARENT.upper(), "tracestate": "a=1"})
    client.get("/enqueues/", headers={"tracestate": "a=1"})
    assert traces() == [PARENT, "", "", ""]
    assert [task.tracestate for task in get_queue().tasks("queued").items] == ["a=1,b=2", "", "", ""]


async def test_a_task_has_the_trace_of_its_async_request(note: Any) -> None:
    for path in ("/aenqueues/", "/enqueues/"):
        await AsyncClient().get(path, headers={"traceparent": PARENT})
    await AsyncClient().get("/aenqueues/")
    assert traces() == [PARENT, PARENT, ""]
    await aclose_queues()


def test_many_tasks_and_pipelines_have_the_current_trace(note: Any) -> None:
    with in_trace(Trace(PARENT)):
        note.enqueue_many([((n,), {}) for n in range(2)])
        group(note.s(n) for n in range(2)).enqueue()
    assert traces() == [PARENT] * 4


def test_a_task_has_the_trace_of_its_enqueue_and_not_of_the_commit(note: Any) -> None:
    with transaction.atomic(), in_trace(Trace(PARENT)):
        note.enqueue()
    with in_trace(Trace(OTHER)), transaction.atomic(), in_trace(Trace(PARENT)):
        note.enqueue()
    assert traces() == [PARENT, PARENT]


def test_a_recurring_task_has_no_trace(note: Any) -> None:
    with in_trace(Trace(PARENT)):
        get_queue().schedules.add("notes", task=note.s(1), every=60)
        get_queue().schedules.run_now("notes")
    assert traces() == [""]


@pytest.fixture
def spawns(note: Any) -> Any:
    @task(name="spawns")
    def spawns() -> str:
        note.enqueue()
        return current_task().traceparent

    return spawns


@pytest.fixture
def aspawns(note: Any) -> Any:
    @task(name="aspawns")
    async def aspawns() -> str:
        await asyncio.sleep(0)
        await note.aenqueue()
        return current_task().traceparent

    return aspawns


@pytest.fixture
def batch(note: Any) -> Any:
    @task(name="batch", batch=10, batch_wait=0.2)
    def batch(items: list[int]) -> list[str]:
        note.enqueue()
        return [task.traceparent for task in current_task().batch]

    return batch


@pytest.mark.parametrize("name", ["spawns", "aspawns"])
def test_children_of_a_task_have_its_trace(note: Any, spawns: Any, aspawns: Any, name: str) -> None:
    with in_trace(Trace(PARENT, "a=1")):
        result = {"spawns": spawns, "aspawns": aspawns}[name].enqueue()
    Worker(burst=True, concurrency=1).run()
    assert result.result() == PARENT
    (child,) = [task for task in get_queue().tasks("finished").items if task.name == "note"]
    assert (child.traceparent, child.tracestate, child.result) == (PARENT, "a=1", PARENT)
    assert current_task().traceparent == ""


async def test_children_of_a_task_in_an_async_worker_have_its_trace(spawns: Any, aspawns: Any) -> None:
    with in_trace(Trace(PARENT)):
        await spawns.aenqueue()
        await aspawns.aenqueue()
    with in_trace(Trace(OTHER)):
        await AsyncWorker(burst=True, concurrency=2).run()
    assert traces("finished") == [PARENT, PARENT]
    await aclose_queues()


@pytest.mark.parametrize(("parents", "whose"), [([PARENT, PARENT], PARENT), ([PARENT, OTHER], ""), ([PARENT, ""], "")])
def test_a_batch_has_the_trace_of_all_its_items(batch: Any, parents: list[str], whose: str) -> None:
    results = []
    for n, parent in enumerate(parents):
        with in_trace(Trace(parent)):
            results.append(batch.enqueue(n))
    Worker(burst=True, concurrency=1).run()
    assert traces("finished") == [whose]
    assert [result.result() for result in results] == parents


def test_captured_and_eager_tasks_have_the_trace_of_their_parent(note: Any, spawns: Any) -> None:
    with in_trace(Trace(PARENT)):
        with capture_tasks() as captured:
            spawns.enqueue()
        with in_trace(Trace(OTHER)):
            captured.run()
        with eager() as ran:
            spawns.enqueue()
    assert [task.result for task in captured] == [PARENT]
    assert [task.result for task in ran] == [PARENT, PARENT]


def test_log_lines_of_the_worker_have_the_trace(note: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "django_fairque.worker")
    with in_trace(Trace(PARENT)):
        traced = note.enqueue()
    untraced = note.enqueue()
    Worker(burst=True, concurrency=1).run()
    logged = {
        record.__dict__["task_id"]: record.__dict__["traceparent"]
        for record in caplog.records
        if "task_id" in record.__dict__
    }
    assert logged == {traced.id: PARENT, untraced.id: ""}


def test_an_open_opentelemetry_span_is_the_parent_of_a_task(note: Any, exporter: InMemorySpanExporter) -> None:
    with trace.get_tracer("project").start_as_current_span("view") as span, in_trace(Trace(PARENT)):
        note.enqueue()
    with in_trace(Trace(PARENT)):
        note.enqueue()
    assert traces() == [traceparent_of(span), PARENT]
    assert [span.name for span in exporter.get_finished_spans()][-1] == "view"  # tracing is off: none of ours
    exporter.clear()


def test_the_task_command_shows_the_trace(note: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with in_trace(Trace(PARENT)):
        traced = note.enqueue()
    call_command("fairque_task", "show", traced.id)
    assert f"trace     {PARENT}\n" in capsys.readouterr().out
    call_command("fairque_task", "show", note.enqueue().id)
    assert "trace" not in capsys.readouterr().out
