"""Tests of the context of a running task and of its progress reports."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque import FairQueueError, StaleLeaseError, TaskUsageError, current_task, task
from django_fairque.engine.model.lease import LeaseKey
from django_fairque.tasks.context import PROGRESS_INTERVAL_SECONDS, RunningTask
from django_fairque.tasks.execution import Run, Services, aexecute, execute, prepare, run_batch
from tests.fixture_types import FairQueue, Redis
from tests.leases import pop

from .helpers import runs_of

Report = tuple[float, float, str]


class Recorder:
    """Stands where a worker writes reports to the server."""

    def __init__(self, *, fails_with: Exception | None = None) -> None:
        self.reports: list[Report] = []
        self.threads: set[int] = set()
        self.fails_with = fails_with

    def __call__(self, lease: Any, current: float, total: float, message: str) -> None:
        self.threads.add(threading.get_ident())
        if self.fails_with is not None:
            raise self.fails_with
        self.reports.append((current, total, message))


def run_of(queue: FairQueue, function: Callable[..., Any], *args: Any, **services: Any) -> Run:
    work = task(name="work", timeout=60)(function)
    work.enqueue(*args)
    run = prepare(pop(queue), Services(queue.name, queue.config, **{"send_progress": Recorder(), **services}))
    assert isinstance(run, Run)
    return run


def test_the_context_outside_of_a_worker_does_nothing() -> None:
    me = current_task()
    assert (me.id, me.name, me.queue, me.user_id) == ("", "", "", "")
    assert (me.attempt, me.retries_left, me.fence, me.deadline, me.cancelled, me.batch) == (1, 0, 0, None, False, ())
    me.progress(1, 2, "half")
    me.raise_if_cancelled()


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (("1", 2), "current must be a finite number, got '1'"),
        ((1, float("nan")), "total must be a finite number, got nan"),
        ((1, float("inf")), "total must be"),
        ((True, 2), "current must be"),
        ((None, 2), "current must be"),
        ((1, 2, 3), "message must be text, got 3"),
    ],
)
def test_a_wrong_progress_report_is_an_error_inside_and_outside_of_a_worker(
    queue: FairQueue, report: Any, expected: str
) -> None:
    with pytest.raises(TaskUsageError, match=expected):
        current_task().progress(*report)
    outcome = execute(run_of(queue, lambda: current_task().progress(*report)))
    assert (outcome.kind, b"TaskUsageError: progress: " in outcome.body) == ("fail", True)


def test_a_message_is_cut_to_1000_bytes_between_two_characters(queue: FairQueue) -> None:
    recorder = Recorder()
    execute(run_of(queue, lambda: current_task().progress(1, 2, "x" + "é" * 900), send_progress=recorder))
    assert recorder.reports[-1] == (1, 2, "x" + "é" * 499)


def test_values_that_a_task_passes_on_count_for_its_user(queue: FairQueue, redis: Redis) -> None:
    run = run_of(queue, lambda: current_task().xcom.push("k", 1))
    assert execute(run).kind == "finish"
    (key,) = redis.scan_iter(match="*:xcom_bytes:*")
    assert key.decode().endswith(f":xcom_bytes:{run.lease.user_id}")


def test_progress_is_sent_at_intervals_and_at_the_end(queue: FairQueue) -> None:
    recorder, spent = Recorder(), 0.0

    def work() -> None:
        nonlocal spent
        started = time.monotonic()
        for n in range(20_000):
            current_task().progress(n, 20_000, f"item {n}")
        spent = time.monotonic() - started

    execute(run_of(queue, work, send_progress=recorder))
    assert recorder.reports[-1] == (19_999, 20_000, "item 19999")
    assert len(recorder.reports) <= 2 + spent / PROGRESS_INTERVAL_SECONDS
    assert recorder.reports == sorted(recorder.reports)


def test_a_report_is_sent_while_the_task_goes_on(queue: FairQueue) -> None:
    recorder = Recorder()

    def work() -> bool:
        me = current_task()
        for n in range(3):  # the first at once, the others a moment later by themselves
            me.progress(n, 3)
        deadline = time.monotonic() + 30
        while (2, 3, "") not in recorder.reports and time.monotonic() < deadline:
            time.sleep(0.001)
        return (2, 3, "") in recorder.reports

    outcome = execute(run_of(queue, work, send_progress=recorder))
    assert outcome.body == b"true"
    assert threading.get_ident() not in recorder.threads


async def test_a_coroutine_reports_without_blocking_its_loop(queue: FairQueue) -> None:
    recorder = Recorder()

    async def work() -> str:
        current_task().progress(1, 2)
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: current_task().progress(2, 2, "from a thread"))
        return current_task().id

    run = run_of(queue, work, send_progress=recorder)
    outcome = await asyncio.create_task(aexecute(run))
    assert outcome.body.decode() == f'"{run.lease.task_id}"'
    assert recorder.reports[-1] == (2, 2, "from a thread")
    assert threading.get_ident() not in recorder.threads
    assert current_task().id == ""


async def test_concurrent_coroutines_have_separate_contexts(queue: FairQueue) -> None:
    everyone_runs = asyncio.Barrier(3) if hasattr(asyncio, "Barrier") else None

    async def work() -> str:
        if everyone_runs is not None:
            await everyone_runs.wait()
        await asyncio.sleep(0)
        return current_task().id

    runs = [run_of(queue, work) for _ in range(3)]
    outcomes = await asyncio.gather(*(asyncio.create_task(aexecute(run)) for run in runs))
    assert [outcome.body.decode() for outcome in outcomes] == [f'"{run.lease.task_id}"' for run in runs]


def test_concurrent_threads_have_separate_contexts(queue: FairQueue) -> None:
    together = threading.Barrier(3)

    def work() -> str:
        together.wait(30)
        return current_task().id

    runs = [run_of(queue, work) for _ in range(3)]
    bodies: dict[str, bytes] = {}
    threads = [
        threading.Thread(target=lambda run=run: bodies.update({run.lease.task_id: execute(run).body})) for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {task_id: f'"{task_id}"'.encode() for task_id in bodies} == bodies
    assert len(bodies) == 3


def test_a_task_that_calls_another_task_keeps_its_context(queue: FairQueue) -> None:
    @task(name="inner")
    def inner() -> str:
        return current_task().name

    assert execute(run_of(queue, inner.function)).body == b'"work"'
    assert current_task().name == ""


def test_a_task_finishes_although_its_progress_is_not_recorded(
    queue: FairQueue, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(queue, lambda: current_task().progress(1, 2), send_progress=Recorder(fails_with=FairQueueError("no")))
    with caplog.at_level(logging.WARNING):
        assert execute(run).kind == "finish"
    assert f"the progress of task {run.lease.task_id} could not be recorded" in caplog.text


def test_a_task_learns_from_its_progress_that_its_lease_is_lost(queue: FairQueue) -> None:
    recorder = Recorder(fails_with=StaleLeaseError("lost"))

    def work() -> None:
        me = current_task()
        me.raise_if_cancelled()
        me.progress(1, 2)
        deadline = time.monotonic() + 30
        while not me.cancelled and time.monotonic() < deadline:
            time.sleep(0.001)
        me.raise_if_cancelled()
        raise AssertionError("the task did not learn that its lease is lost")

    outcome = execute(run_of(queue, work, send_progress=recorder))
    assert (outcome.kind, outcome.body) == ("discard", b"canceled while it ran")


def test_a_running_task_learns_that_it_was_canceled(queue: FairQueue) -> None:
    revoked: set[LeaseKey] = set()

    def work() -> None:
        me = current_task()
        assert not me.cancelled
        assert isinstance(me, RunningTask)
        revoked.add(LeaseKey(me.id, me.lease.token - 1))
        assert not me.cancelled, "that was an earlier run"
        revoked.add(me.lease.key)
        assert me.cancelled
        me.raise_if_cancelled()

    assert execute(run_of(queue, work, revoked=revoked)).kind == "discard"


def test_a_batch_has_the_context_of_each_item(queue: FairQueue) -> None:
    recorder = Recorder()
    seen: list[Any] = []

    @task(name="batch", batch=10)
    def work(items: list[int]) -> None:
        me = current_task()
        seen.extend((context.id, context.user_id, context.fence) for context in me.batch)
        assert me.id == me.batch[0].id
        for context, item in zip(me.batch, items, strict=True):
            context.progress(item, 3)

    sent = [work.using(user_id=f"u{n}").enqueue(n).id for n in range(3)]
    services = Services(queue.name, queue.config, recorder)
    runs = runs_of(queue, services)
    assert [outcome.kind for outcome in run_batch(runs)] == ["finish"] * 3
    assert seen == [(run.lease.task_id, run.lease.user_id, run.lease.token) for run in runs]
    assert {task_id for task_id, *_ in seen} == set(sent)
    assert {report[0] for report in recorder.reports} == {0, 1, 2}
