"""`Worker` and `AsyncWorker` in a process of one's own."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.outcome import Settled
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.signals import task_dead
from django_fairque.tasks import registry
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.fetching.fetch_planner import FetchCall
from django_fairque.worker.fetching.fetch_thread import FetchThread
from django_fairque.worker.leases.lease_renewal import LeaseRenewal

from .conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

    from .conftest import Push

# The workers run in this process, and look after the connections that other tests have left open here.
pytestmark = pytest.mark.django_db(transaction=True)

HANDLED: list[Any] = []


def handle(payload: Any) -> None:
    HANDLED.append(payload)


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}, "QUEUE": {"RETRY_BASE_SECONDS": 0.05}}
    monkeypatch.setattr(registry, "_tasks", {})
    HANDLED.clear()


@pytest.fixture
def tasks() -> Iterator[dict[str, list[int]]]:
    """Tasks that note their argument."""
    over, before = threading.Event(), set(threading.enumerate())
    noted: dict[str, list[int]] = {"plain": [], "awaited": [], "batch": [], "ended": []}

    @task(name="plain")
    def plain(number: int) -> int:
        noted["plain"].append(number)
        return number * 2

    @task(name="awaited")
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        noted["awaited"].append(number)
        return number * 3

    @task(name="batch", batch=5, batch_wait=0.1)
    async def batch(items: list[int]) -> list[int]:
        noted["batch"].append(len(items))
        return [item * 4 for item in items]

    @task(name="long")
    def long(number: int) -> None:
        noted["plain"].append(number)
        end = time.monotonic() + 60
        while time.monotonic() < end and not over.is_set():
            time.sleep(0.005)
        noted["ended"].append(number)

    @task(name="long_awaited")
    async def long_awaited(number: int) -> None:
        noted["awaited"].append(number)
        await asyncio.sleep(60)
        noted["ended"].append(number)

    yield noted
    # A task that a stopped worker could not interrupt goes on. It must end here and not during another test.
    over.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("fairque-slot-"):
            thread.join(5)


@pytest.fixture
def in_thread() -> Iterator[Callable[[Worker], threading.Thread]]:
    """Run workers in threads, and stop them in the end."""
    started: list[tuple[Worker, threading.Thread]] = []

    def start(worker: Worker) -> threading.Thread:
        thread = threading.Thread(target=worker.run)
        started.append((worker, thread))
        thread.start()
        return thread

    yield start
    for worker, thread in started:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


async def begun(tasks: dict[str, list[int]]) -> None:
    """Wait until a plain and an awaited task have begun."""
    await asyncio.to_thread(eventually, lambda: tasks["plain"] and tasks["awaited"])


def push_many(queue: FairQueue, name: str, count: int) -> None:
    queue.push_batch([Task.create(f"u{n % 20}", 3, {"args": [n], "kwargs": {}}, name=name) for n in range(count)])


def fill(push: Push) -> list[tuple[str, int]]:
    """Tasks of each kind, with their results."""
    plain = [(push("plain", n, user=f"u{n % 3}"), n * 2) for n in range(20)]
    awaited = [(push("awaited", n), n * 3) for n in range(20)]
    return plain + awaited + [(push("batch", n), n * 4) for n in range(7)]


Kind = type[Worker | AsyncWorker]
both_kinds = pytest.mark.parametrize("kind", [Worker, AsyncWorker])


async def run_to_end(worker: Worker | AsyncWorker) -> None:
    await asyncio.wait_for(worker.run() if isinstance(worker, AsyncWorker) else asyncio.to_thread(worker.run), 60)


@both_kinds
async def test_a_burst_runs_all_tasks_and_records_the_figures_of_their_names(
    kind: Kind, queue: FairQueue, push: Push, tasks: dict[str, list[int]]
) -> None:
    expected = fill(push)
    await run_to_end(kind(burst=True))
    assert [queue.get_task(task_id).result for task_id, _ in expected] == [result for _, result in expected]
    assert sorted(tasks["batch"]) == [2, 5]
    figures = sorted((figures.attempts, figures.failed, figures.run.count) for figures in queue.task_names())
    assert figures == [(7, 0, 7), (20, 0, 20), (20, 0, 20)]
    assert queue.workers() == []
    assert queue.check_invariants() == []


def test_a_worker_serves_several_queues(push: Push, tasks: dict[str, list[int]]) -> None:
    mail = get_queue("mail")
    here, there = push("plain", 1), push("plain", 2, into=mail)
    Worker(["default", mail], burst=True, concurrency=1).run()
    assert get_queue().get_task(here).result == 2
    assert mail.get_task(there).result == 4


def test_bare_payloads_go_to_the_handler(queue: FairQueue) -> None:
    task_id = queue.push(Task.create("ann", 3, {"any": "thing"})).task_id
    Worker(burst=True, handler=f"{__name__}.handle").run()
    assert HANDLED == [{"any": "thing"}]
    assert queue.get_task(task_id).state is TaskState.FINISHED


def test_an_idle_worker_starts_a_pushed_task_and_reports_its_end(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]], in_thread: Callable[[Worker], threading.Thread]
) -> None:
    in_thread(Worker(poll_interval=5))
    eventually(queue.workers)
    for number in range(5):
        task_id = push("plain", number)
        eventually(lambda task_id=task_id: queue.get_task(task_id).state is TaskState.FINISHED, 2)  # type: ignore[misc]


def test_a_stopped_worker_returns_unfinished_tasks(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]], in_thread: Callable[[Worker], threading.Thread]
) -> None:
    worker = Worker(concurrency=1, shutdown_timeout=0.2)
    thread = in_thread(worker)
    running, waiting = push("long", 1), push("plain", 2)
    eventually(lambda: tasks["plain"] == [1])
    worker.stop()
    thread.join(20)
    assert queue.get_task(running).state is queue.get_task(waiting).state is TaskState.QUEUED
    assert [attempt.error for attempt in queue.history(running)] == ["worker stopped"]
    queue.cancel(running)


async def test_a_stopped_async_worker_returns_unfinished_tasks(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]]
) -> None:
    worker = AsyncWorker(concurrency=2, shutdown_timeout=0.2)
    running = asyncio.ensure_future(worker.run())
    ids = [push("long", 1), push("long_awaited", 2), push("plain", 3)]
    await begun(tasks)
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert [queue.get_task(task_id).state for task_id in ids] == [TaskState.QUEUED] * 3
    assert tasks["ended"] == []


async def test_an_async_worker_sends_alerts_that_it_was_fetching_when_it_was_stopped(
    push: Push, tasks: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetched alert is no longer on the server, so no other worker can send it."""
    fetched, is_leaving = threading.Event(), threading.Event()
    take, finish = FairQueue.take_alerts, LeaseRenewal.finish

    def take_slowly(queue: FairQueue, most: int) -> Any:
        alerts = take(queue, most)
        if alerts:
            fetched.set()
            is_leaving.wait(60)
        return alerts

    def note_leaving(renewal: LeaseRenewal, seconds: float) -> bool:
        is_leaving.set()
        return finish(renewal, seconds)

    received: list[str] = []

    def receiver(task: Task, **_: Any) -> None:
        received.append(task.task_id)

    monkeypatch.setattr(FairQueue, "take_alerts", take_slowly)
    monkeypatch.setattr(LeaseRenewal, "finish", note_leaving)
    task_dead.connect(receiver, sender="plain")
    try:
        late = push("plain", 1, expires_at=time.time() - 1)
        worker = AsyncWorker(concurrency=2)
        running = asyncio.ensure_future(worker.run())
        assert await asyncio.to_thread(fetched.wait, 20)
        worker.stop()
        await asyncio.wait_for(running, 20)
    finally:
        task_dead.disconnect(receiver, sender="plain")
    assert received == [late]


def test_a_stopped_worker_gets_no_tasks(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]], in_thread: Callable[[Worker], threading.Thread]
) -> None:
    """Its process goes on, and so does a wait on the server that it has begun."""
    worker = Worker(poll_interval=60.0)
    thread = in_thread(worker)
    first = push("plain", 1)
    eventually(lambda: queue.get_task(first).state is TaskState.FINISHED)
    worker.stop()
    thread.join(20)
    task_id = push("plain", 2)
    assert queue.get_task(task_id).state is TaskState.QUEUED
    assert eventually(lambda: queue.wait_for_work(1)), "others hear of it"
    assert queue.history(task_id) == []
    lease = queue.pop("another")
    assert lease is not None
    (fetch_thread,) = worker._core._fetch_threads
    fetch_thread.planner.fetch_ahead = FetchCall(fetch=1, is_fetch_ahead=True)
    assert not fetch_thread.wait_ended(Settled([], [lease], 0.0, None), woken=True), "the lease came too late"
    assert not fetch_thread.planner.buffer
    queue.release(lease)


@both_kinds
async def test_workers_end_canceled_tasks(
    kind: Kind, queue: FairQueue, push: Push, tasks: dict[str, list[int]]
) -> None:
    running = asyncio.ensure_future(run_to_end(kind(burst=True, lease_seconds=0.6)))
    ids = [push("long", 1), push("long_awaited", 2)]
    await begun(tasks)
    for task_id in ids:
        queue.cancel(task_id)
    await running
    assert tasks["ended"] == []


async def test_an_async_worker_stops_tasks_at_their_time_limits(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]]
) -> None:
    ids = [push("long", 1, timeout=0.2, max_retries=0), push("long_awaited", 2, timeout=0.2, max_retries=0)]
    await asyncio.wait_for(AsyncWorker([queue], burst=True).run(), 20)
    for task_id in ids:
        assert queue.get_task(task_id).state is TaskState.FAILED
        assert "SoftTimeLimitExceeded" in queue.history(task_id)[-1].error


@both_kinds
async def test_the_time_limit_of_a_queue_applies_to_tasks_without_one(
    kind: Kind, settings: Settings, push: Push, tasks: dict[str, list[int]]
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"mail": {"DEFAULT_TASK_TIMEOUT": 0.2}}}
    mail = get_queue("mail")
    limited = [push(name, 1, into=mail, max_retries=0) for name in ("long", "long_awaited")]
    worker = kind(["default", "mail"], burst=True, task_timeout=60)
    await run_to_end(worker)
    for task_id in limited:
        assert mail.get_task(task_id).state is TaskState.FAILED
        assert "SoftTimeLimitExceeded" in mail.history(task_id)[-1].error


@both_kinds
async def test_a_coroutine_that_raises_a_cancellation_itself_fails(kind: Kind, queue: FairQueue, push: Push) -> None:
    @task(name="canceled")
    async def canceled(number: int) -> None:
        raise asyncio.CancelledError

    @task(name="canceled_together", batch=5)
    async def canceled_together(items: list[int]) -> None:
        raise asyncio.CancelledError

    ids = [push(name, 1, max_retries=0) for name in ("canceled", "canceled_together")]
    worker = kind(burst=True)
    await run_to_end(worker)
    for task_id in ids:
        assert queue.get_task(task_id).state is TaskState.FAILED
        assert "CancelledError" in queue.history(task_id)[-1].error


def test_a_worker_stops_after_its_limit_of_tasks(push: Push, queue: FairQueue, tasks: dict[str, list[int]]) -> None:
    for number in range(10):
        push("plain", number)
    Worker(max_tasks=4, concurrency=3).run()
    assert sorted(tasks["plain"]) == [0, 1, 2, 3]
    assert queue.get_stats().states["queued"] == 6


@pytest.mark.parametrize("is_async", [False, True])
@both_kinds
async def test_batches_are_full_while_enough_items_wait(
    kind: Kind, is_async: bool, queue: FairQueue, push: Push, tasks: dict[str, list[int]]
) -> None:
    """A turn takes all items that fit, with any number of other users and free slots, and a batch occupies one slot."""

    def note(items: list[int]) -> None:
        tasks["batch"].append(len(items))
        time.sleep(0.01)

    @task(name="together", batch=50)
    def together(items: list[int]) -> None:
        note(items)

    @task(name="together_async", batch=50)
    async def together_async(items: list[int]) -> None:
        await asyncio.to_thread(note, items)

    name = "together_async" if is_async else "together"
    queue.push_batch([Task.create("acme", 3, {"args": [n], "kwargs": {}}, name=name) for n in range(520)])
    push_many(queue, "plain", 200)
    worker = kind(burst=True, concurrency=4)
    await run_to_end(worker)
    assert sorted(tasks["batch"]) == [20, *[50] * 10]
    assert len(tasks["plain"]) == 200
    assert queue.check_invariants() == []


def test_a_worker_with_many_short_tasks_keeps_two_calls_in_flight(
    queue: FairQueue, tasks: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: set[str] = set()
    make = FetchThread.make_call

    def noted(fetch_thread: FetchThread, call: FetchCall) -> None:
        makers.add(threading.current_thread().name)
        make(fetch_thread, call)

    monkeypatch.setattr(FetchThread, "make_call", noted)
    rounds = 0
    while rounds < 20 and len(makers) < 2:  # one begins when there are many to report, which is a matter of the machine
        push_many(queue, "plain", 4000)
        Worker(burst=True).run()
        rounds += 1
    assert sorted(tasks["plain"]) == sorted([*range(4000)] * rounds)
    assert makers == {"fairque-fetch-default", "fairque-second-fetch-default"}
    assert queue.get_stats().states["finished"] == 4000 * rounds
    assert queue.workers() == []
    assert queue.check_invariants() == []


def test_two_calls_in_flight_fetch_at_most_the_worker_s_limit(queue: FairQueue, tasks: dict[str, list[int]]) -> None:
    push_many(queue, "plain", 4000)
    Worker(burst=True, max_tasks=2000).run()
    assert len(tasks["plain"]) == 2000
    assert queue.workers() == []
    assert queue.check_invariants() == []


def test_a_task_can_be_stopped_although_a_queue_is_named_twice(push: Push) -> None:
    """A worker finds its queues by name: a name that was given twice once made it confuse the other queues."""
    ended = threading.Event()

    @task(name="long")
    def long() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    mail = get_queue("mail")
    worker = Worker(["default", "default", "mail"], lease_seconds=1.5)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        task_id = mail.push(Task.create("a", 3, {"args": [], "kwargs": {}}, name="long")).task_id
        eventually(lambda: mail.get_task(task_id).state is TaskState.STARTED)
        assert mail.cancel(task_id)
        assert ended.wait(60)
    finally:
        worker.stop()
        thread.join()


async def test_an_async_worker_reports_a_task_that_blocks_its_loop(
    queue: FairQueue, push: Push, tasks: dict[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    @task(name="blocks")
    async def blocks() -> None:
        await asyncio.sleep(0.1)
        time.sleep(2.5)  # noqa: ASYNC251 - on purpose

    @task(name="naps")
    async def naps() -> None:
        await asyncio.sleep(0.5)
        await asyncio.sleep(0.5)

    nap, block = push("naps", timeout=2.0, max_retries=0), push("blocks", user="mallory")
    await asyncio.wait_for(AsyncWorker(burst=True).run(), 20)
    assert f"by task {block} blocks of user mallory" in caplog.text
    assert "time.sleep(2.5)" in caplog.text
    assert "goes on after" in caplog.text
    assert queue.get_task(nap).state is TaskState.FINISHED  # its limit was moved by the time it could not use


def test_an_async_worker_ended_by_a_task_returns_its_other_tasks(queue: FairQueue, push: Push) -> None:
    started = []

    @task(name="sleeps")
    async def sleeps() -> None:
        started.append(1)
        await asyncio.sleep(60)

    async def end_program() -> None:
        await asyncio.to_thread(eventually, lambda: len(started) == 4)
        raise SystemExit

    @task(name="exits")
    async def exits() -> None:
        await asyncio.gather(end_program(), asyncio.sleep(60))

    others = [push("sleeps", user=f"user-{number}", max_retries=0) for number in range(4)]
    push("exits", user="mallory", max_retries=0)
    with pytest.raises(SystemExit):
        asyncio.run(AsyncWorker().run())
    assert [queue.get_task(other).state for other in others] == [TaskState.QUEUED] * 4
    assert [attempt.kind for other in others for attempt in queue.history(other)] == ["released"] * 4
    assert queue.check_invariants() == []


@pytest.mark.parametrize("name", ["plain", "awaited"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_s_own_failure_uses_a_delivery_and_no_retry(
    queue: FairQueue,
    push: Push,
    tasks: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    is_async: bool,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake in the worker")

    task_id = push(name, 1, max_retries=0)
    for function in (
        "common.isolation.clean_up_connections",
        "execution.slots.aexecute" if is_async else "common.isolation.TaskContexts.new",
    ):
        monkeypatch.setattr(f"django_fairque.worker.{function}", fail)
    if is_async:
        asyncio.run(AsyncWorker(burst=True).run())
    else:
        Worker(burst=True).run()
    task = queue.get_task(task_id)
    assert (task.state, task.delivery, task.retry_count) == (TaskState.SCHEDULED, 1, 0)
    assert f"task {task_id} {name} of user ann: the worker itself failed while it ran this task" in caplog.text
    assert "a mistake in the worker" in caplog.text
    assert tasks[name] == []
