"""Tests that the records of a worker's processes name the tasks in their slots and the causes of deaths."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_fairque import AsyncWorker, Worker
from django_fairque.engine.inspection.worker_activity import (
    UNRESPONSIVE_FIELD,
    ActivityReport,
    EndReason,
    decode_activity,
    list_recent_deaths,
)
from django_fairque.tasks import registry
from django_fairque.tasks.registry import task
from django_fairque.worker.execution.slot_sampler import SlotSampler
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    import pytest
    from pytest_django import Settings

    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push


TASKS = Path(__file__).parents[1] / "project" / "tasks.py"


def reports(queue: FairQueue) -> list[ActivityReport]:
    return list(filter(None, map(decode_activity, queue.workers())))


@pytest.mark.thorough
def test_running_tasks_and_deaths_are_reported(workers: Workers) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "2", lease_seconds="2").wait_ready(2)
    task_id = workers.push("nap", 60.0)
    (running,) = eventually(
        lambda: [
            slot for report in reports(workers.queue) for slot in report.slots if slot.task and slot.busy_seconds > 1
        ]
    )
    assert (running.task.task_id, running.task.name) == (task_id, "nap")
    assert running.users[-1] == running.task.user_id == workers.queue.get_task(task_id).user_id
    assert 0 < time.time() - running.task.started_at < 60
    assert [len(report.slots) for report in reports(workers.queue)] == [2, 2]
    (owner,) = [record.worker for record in workers.queue.workers() if record.info["running"] == "1"]
    (child,) = [child for child in worker.children() if str(child.pid) == pid_of(workers.queue, owner)]
    child.kill()
    (death,) = eventually(lambda: list_recent_deaths(workers.queue.workers(), time.time()))
    assert (death.worker, death.reason, death.code, death.task_ids) == (owner, EndReason.SIGNAL, 9, (task_id,))


def pid_of(queue: FairQueue, worker: str) -> str:
    return {record.worker: record.info["pid"] for record in queue.workers()}[worker]


@pytest.mark.thorough
def test_a_process_that_is_replaced_as_configured_is_not_recorded_as_a_death(workers: Workers) -> None:
    for _ in range(3):
        workers.push("add", 1, 1)
    workers.start("--processes", "1", "--max-tasks", "1", lease_seconds="2").wait_ready()
    eventually(lambda: workers.queue.get_stats().states["finished"] == 3)
    eventually(lambda: len(workers.queue.workers()) == 1 and workers.queue.workers()[0].info["done"] == "0")
    assert list_recent_deaths(workers.queue.workers(), time.time()) == []


def lines_of(queue: FairQueue, task_id: str) -> list[str]:
    return [report.lines[task_id] for report in reports(queue) if task_id in report.lines]


def line_of(code: str, function: str) -> str:
    """Return the line of the project's tasks with this code, as it is reported."""
    (number,) = [n for n, text in enumerate(TASKS.read_text().splitlines(), 1) if code in text]
    return f"tests/worker/project/tasks.py:{number} {function}"


def test_the_lines_of_a_waiting_function_and_of_a_waiting_coroutine_are_reported(workers: Workers) -> None:
    """Both wait in the standard library. The line is that of the project's innermost function."""
    workers.start("--processes", "1", "--concurrency", "2", lease_seconds="2").wait_ready()
    expected = {
        workers.push("deadlock"): line_of("# never returns", "wait_for_a_lock"),
        workers.push("awaits"): line_of("asyncio.Event().wait()", "wait_for_an_event"),
    }
    for task_id, line in expected.items():
        eventually(partial(lines_of, workers.queue, task_id))
        assert lines_of(workers.queue, task_id) == [line]


@pytest.mark.thorough
def test_c_code_that_keeps_the_interpreter_shows_as_an_old_sample(workers: Workers) -> None:
    workers.start("--processes", "1", "--concurrency", "1", lease_seconds="2", task_timeout="60").wait_ready()
    task_id = workers.push("backtrack_later", 40)
    record: WorkerRecord = eventually(
        lambda: [record for record in workers.queue.workers() if record.info.get(UNRESPONSIVE_FIELD)]
    )[0]
    report = decode_activity(record)
    assert report is not None
    assert report.lines[task_id].startswith("tests/worker/project/tasks.py:")
    assert f"does not respond, its tasks were at {report.lines[task_id]};" in str(workers.queue.health().reasons)
    until = report.at + 3
    later = eventually(lambda: [new for new in workers.queue.workers(record.worker) if new.seen_at > until])
    last = decode_activity(later[0])
    assert last is not None
    assert abs(last.at - report.at) < 1, "no sample was taken since"
    assert last.lines == report.lines
    (child,) = workers.processes[0].children()
    child.kill()


def test_sampling_64_slots_takes_less_than_half_a_percent_of_a_core(
    queue: FairQueue, push: Push, server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    monkeypatch.setattr(registry, "_tasks", {})
    release = threading.Event()

    def wait(depth: int) -> None:
        if depth:
            wait(depth - 1)
        release.wait(60)

    @task(name="waits")
    def waits() -> None:
        wait(100)

    @task(name="awaits")
    async def awaits() -> None:
        await asyncio.to_thread(release.wait, 60)

    for number in range(64):
        push("waits" if number % 2 else "awaits", user=f"user{number}")
    worker = Worker([queue], concurrency=64)
    thread = threading.Thread(target=worker.run)
    thread.start()
    encoded: list[bytes] = []
    seconds = []

    def sampled() -> list[tuple[str, int]]:
        SlotSampler(worker._core.slot_pool.slots, encoded.append).update()
        return sorted((line.split(" ")[1], len(ids)) for line, ids in json.loads(encoded[-1])["lines"].items())

    try:
        eventually(lambda: worker._core.status_board.count_running() == 64)
        eventually(lambda: sampled() == [("awaits", 32), ("wait", 32)])
        for _ in range(20):
            sampler = SlotSampler(worker._core.slot_pool.slots, encoded.append)
            began = time.thread_time()
            sampler.update()
            seconds.append(time.thread_time() - began)
    finally:
        release.set()
        worker.stop()
        thread.join()
    assert min(seconds) < 0.005


def test_a_worker_without_supervisor_reports_its_slots(queue: FairQueue, server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    worker = Worker([queue], concurrency=3, lease_seconds=1.0)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        found = eventually(lambda: reports(queue))
    finally:
        worker.stop()
        thread.join()
    assert len(found[0].slots) == 3
    assert found[0].utilization == 0


async def test_an_async_worker_reports_the_coroutines_in_its_slots(
    queue: FairQueue, push: Push, server: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    monkeypatch.setattr(registry, "_tasks", {})

    @task(name="waits")
    async def waits() -> None:
        await asyncio.sleep(60)

    task_id = await asyncio.to_thread(push, "waits", user="bob")
    worker = AsyncWorker([queue.name], concurrency=2, lease_seconds=1.0, shutdown_timeout=0.0)
    running = asyncio.ensure_future(worker.run())

    def busy() -> list[tuple[str, str, str | None]]:
        slots = [slot for report in reports(queue) for slot in report.slots if slot.task]
        return [(slot.task.task_id, slot.task.name, slot.users[-1]) for slot in slots if slot.task]

    try:
        assert await asyncio.to_thread(eventually, busy) == [(task_id, "waits", "bob")]
        assert [len(report.slots) for report in await asyncio.to_thread(reports, queue)] == [2]
    finally:
        worker.stop()
        await asyncio.wait_for(running, 20)
