"""A slot runs functions in its thread, and coroutines on the event loop, which takes the slot's next task by itself."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from pydantic import AfterValidator

from django_fairque.engine.model.task import Task
from django_fairque.tasks import registry
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.execution import event_loop
from django_fairque.worker.execution.event_loop import SLOTS_PER_TURN, LoopThread, RunningLoop
from django_fairque.worker.execution.slots import Slot, is_for_loop
from django_fairque.worker.reporting import log_capture
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push

# The workers run in this process, and look after the connections that other tests have left open here.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    monkeypatch.setattr(registry, "_tasks", {})
    yield
    logging.root.removeHandler(log_capture.handler)


def run_worker(worker_class: type, **options: Any) -> None:
    if worker_class is Worker:
        Worker(burst=True, **options).run()
    else:
        asyncio.run(AsyncWorker(burst=True, **options).run())


@pytest.mark.parametrize("name", ["awaited", "typed"])
@pytest.mark.parametrize("worker_class", [Worker, AsyncWorker])
def test_coroutines_wake_no_thread_for_each_task(
    queue: FairQueue, monkeypatch: pytest.MonkeyPatch, worker_class: type, name: str
) -> None:
    @task(name="awaited")
    async def awaited(value: str) -> None:
        await asyncio.sleep(0)

    @task(name="typed")
    async def typed(value: UUID) -> UUID:
        await asyncio.sleep(0)
        assert isinstance(value, UUID)
        return value

    wakes: list[int] = []
    wake = Slot.wake

    def counted(slot: Slot) -> None:
        wakes.append(slot.index)
        wake(slot)

    monkeypatch.setattr(Slot, "wake", counted)
    payload: dict[str, Any] = {"args": [str(uuid4())], "kwargs": {}}
    queue.push_batch([Task.create(f"u{number % 20}", 3, payload, name=name) for number in range(2000)])
    run_worker(worker_class, concurrency=50)
    assert queue.get_stats().states["finished"] == 2000
    assert len(wakes) < 1000, "50 when the worker ends, and one every 50 ms in case that an idle slot was overlooked"


RAN: list[tuple[str, str]] = []
"""The names of the functions that ran, each with the name of its thread."""


def note(what: str) -> None:
    RAN.append((what, threading.current_thread().name))


def convert(value: Any) -> Any:
    note("conversion")
    return value


@pytest.mark.parametrize("worker_class", [Worker, AsyncWorker])
def test_one_slot_runs_functions_coroutines_and_batches(queue: FairQueue, push: Push, worker_class: type) -> None:
    RAN.clear()

    @task(name="function")
    def function() -> None:
        note("function")

    @task(name="coroutine")
    async def coroutine() -> None:
        await asyncio.sleep(0)
        note("coroutine")

    @task(name="converts")
    async def converts(value: Annotated[UUID, AfterValidator(convert)]) -> None:
        note("converts")

    @task(name="logs", capture_logs="INFO")
    async def logs() -> None:
        note("logs")
        logging.getLogger("shop").warning("sold out")

    @task(name="batch", batch=5, batch_wait=0.0)
    async def batch(items: list[int]) -> list[int]:
        note("batch")
        return items

    names = ["coroutine", "function", "coroutine", "converts", "logs", "function", "logs", "coroutine", "function"]
    for name in names:
        push(name, *([str(uuid4())] if name == "converts" else []))
    ids = [push("batch", 1)]
    run_worker(worker_class, concurrency=1)
    assert [what for what, _ in RAN if what != "conversion"] == [*names, "batch"]
    loop = {thread for what, thread in RAN if what in ("coroutine", "converts", "logs", "batch")}
    assert len(loop) == 1
    # A conversion of the project can take long, so it keeps only its own slot busy.
    assert "conversion" in dict(RAN)
    assert {thread for what, thread in RAN if what in ("function", "conversion")} == {"fairque-slot-0"} != loop
    assert queue.get_stats().states["finished"] == len(names) + len(ids)
    assert queue.check_invariants() == []


@pytest.mark.parametrize(("size", "expected"), [(1, True), (60_000, True), (70_000, False)])
def test_the_loop_decodes_no_large_payload(queue: FairQueue, push: Push, size: int, expected: bool) -> None:
    @task(name="coroutine")
    async def coroutine(value: str) -> None: ...

    push("coroutine", "x" * size)
    lease = queue.pop("worker")
    assert lease is not None
    assert is_for_loop(lease) is expected


def test_captured_lines_are_not_sent_by_the_loop(push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    senders: list[str] = []
    close = log_capture.LogCapture.close

    def noted(capture: log_capture.LogCapture) -> None:
        senders.append(threading.current_thread().name)
        close(capture)

    @task(name="logs", capture_logs="INFO")
    async def logs() -> None:
        logging.getLogger("shop").warning("sold out")

    monkeypatch.setattr(log_capture.LogCapture, "close", noted)
    for _ in range(3):
        push("logs")
    Worker(burst=True, concurrency=1).run()
    assert senders == ["fairque-slot-0"] * 3


def test_a_blocked_loop_does_not_delay_functions(queue: FairQueue, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    began, over, ran = threading.Event(), threading.Event(), threading.Event()

    @task(name="blocks")
    async def blocks() -> None:
        began.set()
        over.wait(60)

    @task(name="coroutine")
    async def coroutine() -> None: ...

    @task(name="function")
    def function() -> None:
        ran.set()

    monkeypatch.setattr(event_loop, "LOOP_BLOCKED_SECONDS", 60.0)  # else the worker gives everything back soon
    worker = Worker(concurrency=4)
    with ThreadPoolExecutor(1) as threads:
        end = threads.submit(worker.run)
        try:
            push("blocks", user="mallory")
            assert began.wait(60)
            payload: dict[str, Any] = {"args": [], "kwargs": {}}
            names = {"ann": "coroutine", "bob": "function"}
            queue.push_batch([Task.create(user, 3, payload, name=name) for user, name in names.items()])
            assert ran.wait(60)
            eventually(lambda: queue.get_stats().states["finished"] == 1)
        finally:
            over.set()
            worker.stop()
        end.result(20)
    assert queue.check_invariants() == []


class IdleSlot:
    """Notes who goes on with it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def go_on(self) -> None:
        self.calls.append("loop")

    def wake(self) -> None:
        self.calls.append("thread")


def idle_slots(count: int = 2) -> list[Any]:
    return [IdleSlot() for _ in range(count)]


def calls(slots: list[Any]) -> set[str]:
    assert all(len(slot.calls) <= 1 for slot in slots)
    return {call for slot in slots for call in slot.calls}


async def test_a_loop_goes_on_with_idle_slots() -> None:
    loop, slots = RunningLoop(), idle_slots()
    loop.serve(slots[:1])
    loop.serve(slots[1:])
    assert loop.is_used, "so that somebody notices if it is blocked"
    await asyncio.sleep(0)
    assert calls(slots) == {"loop"}
    assert not loop.is_used


async def test_a_loop_goes_on_with_many_slots_in_several_turns() -> None:
    loop, slots = RunningLoop(), idle_slots(1000)
    loop.serve(slots[:500])
    loop.serve(slots[500:])
    served = [0]
    while served[-1] < len(slots):
        await asyncio.sleep(0)
        served.append(sum(len(slot.calls) for slot in slots))
        assert 0 < served[-1] - served[-2] <= SLOTS_PER_TURN
    await asyncio.sleep(0)
    assert calls(slots) == {"loop"}


async def test_a_loop_that_stops_leaves_slots_to_their_threads() -> None:
    loop, slots = RunningLoop(), idle_slots()
    loop.serve(slots[:1])
    loop.cancel()
    loop.serve(slots[1:])
    await asyncio.sleep(0)
    assert calls(slots) == {"thread"}


async def test_a_blocked_loop_leaves_slots_to_their_threads() -> None:
    loop, slots = RunningLoop(), idle_slots()
    loop.serve(slots)
    loop.give_back_waiting()  # when it was found to be blocked
    await asyncio.sleep(0)
    assert calls(slots) == {"thread"}


def test_a_loop_that_the_program_has_closed_leaves_slots_to_their_threads() -> None:
    async def make() -> RunningLoop:
        return RunningLoop()

    loop, slots = asyncio.run(make()), idle_slots()
    loop.serve(slots)
    assert loop.has_stopped()
    assert calls(slots) == {"thread"}


class BrokenLoop(LoopThread):
    def _run_on(self) -> None:
        raise RuntimeError("a task broke it")


@pytest.mark.parametrize("is_too_late", [False, True])
def test_a_loop_that_broke_leaves_slots_to_their_threads(is_too_late: bool) -> None:
    loop, slots = BrokenLoop(close_connections=False), idle_slots()
    if not is_too_late:
        loop.serve(slots)
    loop.start()
    loop.join(20)
    assert not loop.is_alive()
    if is_too_late:
        loop.serve(slots)
    assert calls(slots) == {"thread"}


IN_TRANSACTION: list[bool] = []
"""Whether each task that queries began in an open transaction."""


def query() -> None:
    IN_TRANSACTION.append(connection.in_atomic_block)
    connection.ensure_connection()


def leave_transaction_open(value: UUID) -> UUID:
    transaction.atomic().__enter__()
    if not value.int:
        raise ValueError("zero")
    return value


def test_connections_are_checked_once_for_each_of_several_tasks_in_a_row(
    queue: FairQueue, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(name="queries")(query)
    checks: list[str] = []
    check = BaseDatabaseWrapper.close_if_unusable_or_obsolete

    def counted(wrapper: BaseDatabaseWrapper) -> None:
        checks.append(threading.current_thread().name)
        check(wrapper)

    monkeypatch.setattr(BaseDatabaseWrapper, "close_if_unusable_or_obsolete", counted)
    for _ in range(20):
        push("queries")
    run_worker(Worker, concurrency=1)
    assert 20 <= checks.count("fairque-slot-0") <= 25


@pytest.mark.parametrize("number", [1, 0])
def test_a_transaction_that_a_conversion_left_open_ends_before_the_next_task(
    queue: FairQueue, push: Push, number: int
) -> None:
    """The connection is checked although the task before has just ended."""
    IN_TRANSACTION.clear()
    task(name="queries")(query)

    @task(name="converts")
    def converts(value: Annotated[UUID, AfterValidator(leave_transaction_open)]) -> None:
        query()

    push("queries")
    push("converts", str(UUID(int=number)))
    push("queries")
    run_worker(Worker, concurrency=1)
    assert [False] * (2 + number) == IN_TRANSACTION
