"""Tests of ``capture_logs``: a task's own log lines are stored, up to a limit and with any text."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.tasks import registry
from django_fairque.tasks.errors import SoftTimeLimitExceeded
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.reporting import log_capture
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push

pytestmark = pytest.mark.django_db(transaction=True)

log = logging.getLogger("tests.shop")


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.05}}
    monkeypatch.setattr(registry, "_tasks", {})
    level = log.level
    log.setLevel(logging.DEBUG)
    yield
    log.setLevel(level)
    logging.root.removeHandler(log_capture.handler)


def run(queue: FairQueue, **options: object) -> None:
    Worker(burst=True, **options).run()  # type: ignore[arg-type]
    assert queue.check_invariants() == []


def texts(queue: FairQueue, task_id: str) -> list[list[str]]:
    return [[line.text for line in log.lines] for log in queue.logs.of_task(task_id)]


def test_each_task_captures_its_own_log_lines(queue: FairQueue, push: Push) -> None:
    """Threads and coroutines run at the same time, and tasks start threads in their context."""

    @task(name="plain", capture_logs=True)
    def plain(name: str) -> None:
        for number in range(20):
            log.info("%s %d", name, number)
            time.sleep(0.0005)
        context = contextvars.copy_context()
        child = threading.Thread(target=context.run, args=(log.info, "%s of a thread", name))
        child.start()
        child.join()

    @task(name="awaited", capture_logs=True)
    async def awaited(name: str) -> None:
        for number in range(20):
            log.info("%s %d", name, number)
            await asyncio.sleep(0)
        await asyncio.to_thread(log.info, "%s of a thread", name)

    @task(name="silent")
    async def silent(name: str) -> None:
        log.info("%s is not kept", name)

    ids = {push(kind, f"{kind}-{number}"): f"{kind}-{number}" for kind in ("plain", "awaited") for number in range(6)}
    others = [push("silent", f"silent-{number}") for number in range(6)]
    run(queue, concurrency=8)
    for task_id, name in ids.items():
        assert texts(queue, task_id) == [[*(f"{name} {number}" for number in range(20)), f"{name} of a thread"]]
    assert all(queue.logs.of_task(other) == [] for other in others)


async def test_an_async_worker_captures_log_lines(queue: FairQueue, push: Push) -> None:
    @task(name="awaited", capture_logs="info")
    async def awaited() -> None:
        log.debug("too low")
        log.info("high enough")

    task_id = push("awaited")
    await asyncio.wait_for(AsyncWorker(burst=True).run(), 20)
    assert [texts(queue, task_id)] == [[["high enough"]]]


def test_tasks_without_captured_logs_need_no_handler_and_no_key(queue: FairQueue, push: Push, redis: Redis) -> None:
    @task(name="plain")
    def plain() -> None:
        log.info("not kept")

    push("plain")
    run(queue)
    assert log_capture.handler not in logging.root.handlers
    assert not [key for key in redis.keys("*") if b":logs:" in key]


def test_captured_log_lines_are_bounded_and_the_latest_are_kept(queue: FairQueue, push: Push) -> None:
    @task(name="many", capture_logs=True)
    def many() -> None:
        for number in range(5000):
            log.info("line %d", number)

    @task(name="large", capture_logs=True)
    def large() -> None:
        for number in range(30):
            log.info("%d%s", number, "ä" * 1_000_000)

    few, long = push("many"), push("large")
    run(queue)
    (kept,) = queue.logs.of_task(few)
    assert (len(kept.lines), kept.omitted) == (log_capture.MAX_CAPTURED_LINES, 4800)
    assert (kept.lines[0].text, kept.lines[-1].text) == ("line 4800", "line 4999")
    (kept,) = queue.logs.of_task(long)
    assert sum(len(line.text.encode()) for line in kept.lines) <= log_capture.MAX_CAPTURED_BYTES
    assert len(kept.lines[-1].text) == log_capture.MAX_LOG_LINE_CHARACTERS
    assert kept.lines[-1].text.startswith("29ä")
    assert len(kept.lines) + kept.omitted == 30


def test_log_lines_with_any_text_are_captured(queue: FairQueue, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])  # pytest captures only valid Unicode

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @task(name="strange", capture_logs=True)
    def strange() -> None:
        log.warning("half \ud800, escape \x1b[31m, zero \0, <b>bold</b>")
        log.warning("%s", Broken())
        log.warning("%d", "no number")
        try:
            raise ValueError("the reason")  # noqa: TRY301
        except ValueError:
            log.exception("it failed")

    task_id = push("strange")
    run(queue)
    half, broken, mismatch, failed = texts(queue, task_id)[0]
    assert half == "half \\ud800, escape \x1b[31m, zero \0, <b>bold</b>"
    assert (broken, mismatch) == tuple(
        f"<the message can't be formatted: {name}>" for name in ("RuntimeError", "TypeError")
    )
    assert failed.startswith("it failed\nTraceback")
    assert failed.endswith("ValueError: the reason")
    assert queue.get_task(task_id).state.value == "finished"


def test_each_attempt_captures_its_own_log_lines(queue: FairQueue, push: Push) -> None:
    @task(name="failing", capture_logs=True)
    def failing() -> None:
        log.info("before the error")
        raise ValueError

    task_id = push("failing", max_retries=1)
    Worker(burst=True).run()
    queue.run_now(task_id)
    run(queue)
    assert texts(queue, task_id) == [["before the error"]] * 2
    assert [log.attempt for log in queue.logs.of_task(task_id)] == [1, 2]


def test_lines_before_a_time_limit_are_kept(queue: FairQueue, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [logging.NullHandler()])  # others swallow what is raised in a text

    @task(name="plain", capture_logs=True, timeout=0.1, max_retries=0)
    def plain() -> None:
        log.info("begun")
        try:
            for _ in range(500):
                log.debug("%s", Slow())
        except SoftTimeLimitExceeded:
            log.info("cleaned up")
            raise

    class Slow:
        def __str__(self) -> str:
            """The limit is raised in here: it must pass."""
            time.sleep(0.02)
            return ""

    @task(name="awaited", capture_logs="INFO", timeout=0.1, max_retries=0)
    async def awaited() -> None:
        log.info("begun")
        await asyncio.sleep(60)

    first, second = push("plain", max_retries=0), push("awaited", max_retries=0)
    run(queue)
    assert [queue.get_task(task_id).state.value for task_id in (first, second)] == ["failed", "failed"]
    (lines,) = texts(queue, first)
    assert (lines[0], lines[-1]) == ("begun", "cleaned up")
    assert texts(queue, second) == [["begun"]]


def test_log_lines_after_the_end_of_a_task_are_not_captured(queue: FairQueue, push: Push) -> None:
    goes_on = threading.Event()
    children: list[threading.Thread] = []

    @task(name="leaves", capture_logs=True)
    def leaves() -> None:
        log.info("the task")

        def late() -> None:
            goes_on.wait(60)
            log.info("later")

        children.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        children[0].start()

    task_id = push("leaves")
    run(queue)
    goes_on.set()
    children[0].join()
    assert texts(queue, task_id) == [["the task"]]


def test_log_lines_of_a_killed_process_were_sent_while_it_ran(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "2").wait_ready()
    task_id = workers.push("talks", 60.0, max_deliveries=1)
    eventually(lambda: workers.queue.logs.of_task(task_id))
    (child,) = worker.children()
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: workers.queue.get_task(task_id).state.value == "failed")
    (kept,) = workers.queue.logs.of_task(task_id)
    assert kept.lines[0].text == "talks"
    assert kept.lines[0].logger == "tests.worker.project"
    assert kept.worker


def test_logging_s_last_resort_prints_warnings_despite_the_capture_handler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [log_capture.handler])
    log.warning("printed")
    log.info("not printed")
    with monkeypatch.context() as patch:
        patch.setattr(log, "handlers", [logging.NullHandler()])
        log.warning("handled")
    assert capsys.readouterr().err == "printed\n"
