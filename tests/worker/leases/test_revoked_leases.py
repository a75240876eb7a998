"""A cancellation ends the run that it was meant for, and nothing else: not another run of the same id, not another task."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.lease import LeaseKey
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.tasks import registry
from django_fairque.tasks.execution import Services
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.execution.slots import prepare_runs, run_one
from django_fairque.worker.fetching.queue_context import MAX_REVOKED_LEASES, RevokedLeases
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

# The workers run in this process, and look after the connections that other tests have left open here.
pytestmark = pytest.mark.django_db(transaction=True)

both_kinds = pytest.mark.parametrize("kind", [Worker, AsyncWorker])
both_forms = pytest.mark.parametrize("form", ["plain", "awaited"])
REVOKED = "fq:{default:0}:revoked:w"


class Runs:
    """Each run has a name: it notes that it has begun and how it has ended, and goes on until it may end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.stopped: list[str] = []
        self.may_end: set[str] = set()
        self.gate = threading.Event()

    def goes_on(self, name: str, limit: float) -> bool:
        return name not in self.may_end and time.monotonic() < limit

    def note(self, name: str, *, is_done: bool) -> None:
        (self.ended if is_done else self.stopped).append(name)


@pytest.fixture
def runs(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}, "QUEUE": {"RETRY_BASE_SECONDS": 0.05}}
    monkeypatch.setattr(registry, "_tasks", {})
    noted = Runs()

    @task(name="plain")
    def plain(name: str) -> None:
        is_done, limit = False, time.monotonic() + 30
        noted.begun.append(name)
        try:
            while noted.goes_on(name, limit):
                time.sleep(0.005)
            is_done = True
        finally:
            noted.note(name, is_done=is_done)

    @task(name="awaited")
    async def awaited(name: str) -> None:
        is_done, limit = False, time.monotonic() + 30
        noted.begun.append(name)
        try:
            while noted.goes_on(name, limit):  # noqa: ASYNC110 - another thread says when it may end
                await asyncio.sleep(0.005)
            is_done = True
        finally:
            noted.note(name, is_done=is_done)

    @task(name="together", batch=5)
    def together(names: list[str]) -> None:
        noted.begun += names

    @task(name="deaf")
    def deaf(name: str) -> None:
        """Wait in a call that can't be interrupted."""
        noted.begun.append(name)
        noted.gate.wait(30)

    yield noted
    noted.gate.set()
    while STARTED:
        STARTED.pop().end()


class Running:
    """A worker in a thread; it ends when there is nothing to do any more."""

    def __init__(self, kind: type[Worker | AsyncWorker], **arguments: Any) -> None:
        self.worker = kind(worker_id="w", burst=True, **{"concurrency": 2, "lease_seconds": 0.9, **arguments})
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        STARTED.append(self)

    def _run(self) -> None:
        if isinstance(self.worker, AsyncWorker):
            asyncio.run(self.worker.run())
        else:
            self.worker.run()

    @property
    def revoked(self) -> list[LeaseKey]:
        """The revoked leases that the worker remembers."""
        worker = self.worker._worker if isinstance(self.worker, AsyncWorker) else self.worker
        return [key for context in worker._core.slot_pool.queue_contexts for key in context.revoked]

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "the worker did not end"

    def end(self) -> None:
        """Whatever has become of it."""
        if self._thread.is_alive():
            self.worker.stop()
            self._thread.join(60)


STARTED: list[Running] = []


def push(queue: FairQueue, kind: str, name: str, **options: Any) -> str:
    """With a name that tells the runs of one id apart."""
    return queue.push(Task.create("ann", 3, {"args": [name], "kwargs": {}}, name=kind, **options)).task_id


def received(redis: Redis) -> bool:
    """Return whether the worker got all cancellations, which it obeys at once."""
    return not redis.exists(REVOKED)


@both_kinds
@both_forms
def test_a_canceled_id_that_is_pushed_again_runs(
    kind: type[Worker | AsyncWorker], form: str, queue: FairQueue, runs: Runs
) -> None:
    push(queue, form, "old", task_id="x", max_retries=0)
    worker = Running(kind)
    eventually(lambda: runs.begun == ["old"])
    queue.cancel("x")
    push(queue, form, "new", task_id="x", max_retries=0)
    eventually(lambda: runs.begun == ["old", "new"])
    eventually(lambda: runs.stopped)
    runs.may_end.add("new")
    worker.join()
    assert (runs.begun, runs.stopped, runs.ended) == (["old", "new"], ["old"], ["new"])
    assert worker.revoked == []
    assert queue.get_task("x").state is TaskState.FINISHED
    assert [attempt.kind for attempt in queue.history("x")] == ["canceled"], "the attempt of the old run"
    assert queue.check_invariants() == []


@both_kinds
@both_forms
def test_the_old_run_had_ended_before_the_worker_was_notified(
    kind: type[Worker | AsyncWorker], form: str, queue: FairQueue, redis: Redis, runs: Runs
) -> None:
    push(queue, form, "old", task_id="x", max_retries=0)
    push(queue, form, "other")
    worker = Running(kind, lease_seconds=2.4)
    eventually(lambda: set(runs.begun) == {"old", "other"})
    heartbeat = eventually(queue.workers)[0].seen_at
    eventually(lambda: queue.workers()[0].seen_at > heartbeat)  # the next one is 0.8 s away
    queue.cancel("x")
    runs.may_end.add("old")
    eventually(lambda: runs.ended == ["old"])
    eventually(lambda: received(redis))
    push(queue, form, "new", task_id="x", max_retries=0)
    runs.may_end |= {"new", "other"}
    worker.join()
    assert runs.begun.count("new") == 1
    assert (runs.stopped, sorted(runs.ended)) == ([], ["new", "old", "other"])
    assert queue.get_task("x").state is TaskState.FINISHED
    assert [attempt.kind for attempt in queue.history("x")] == ["canceled"], "the attempt of the old run"


@both_kinds
@both_forms
def test_an_equal_id_in_another_queue_runs_on(
    kind: type[Worker | AsyncWorker], form: str, queue: FairQueue, runs: Runs
) -> None:
    mail = get_queue("mail")
    push(queue, form, "here", task_id="x", max_retries=0)
    push(mail, form, "there", task_id="x", max_retries=0)
    worker = Running(kind, queues=["default", "mail"])
    eventually(lambda: set(runs.begun) == {"here", "there"})
    queue.cancel("x")
    eventually(lambda: runs.stopped)
    runs.may_end.add("there")
    worker.join()
    assert (runs.stopped, runs.ended) == (["here"], ["there"])
    assert mail.get_task("x").state is TaskState.FINISHED


def test_a_task_that_was_revoked_before_its_start_does_not_run(queue: FairQueue, runs: Runs) -> None:
    ids = [push(queue, "together", name) for name in ("wanted", "canceled", "late")]
    leases = queue.pop_batch(3, "w")
    revoked = RevokedLeases([leases[1].key, LeaseKey(ids[0], leases[0].token + 1)])
    begun, outcomes = prepare_runs(leases, Services("default", queue.config, lambda *_: None, revoked=revoked))
    assert [run.lease for run in begun] == [leases[0], leases[2]]
    revoked.add_leases([leases[2].key])  # in the moment in which it begins
    outcomes += map(run_one, begun)
    assert runs.begun == ["wanted"]
    outcomes = [revoked.settle(outcome) for outcome in outcomes]
    assert {outcome.lease.task_id: outcome.kind for outcome in outcomes} == dict(
        zip(ids, ["finish", "release", "release"], strict=True)
    )
    assert not revoked & {lease.key for lease in leases}


def test_the_list_of_revoked_leases_is_bounded() -> None:
    revoked = RevokedLeases()
    for number in range(3 * MAX_REVOKED_LEASES):
        revoked.add_leases([LeaseKey("x", number)])
    assert LeaseKey("x", number) in revoked
    assert len(revoked) <= MAX_REVOKED_LEASES + 1


def test_a_second_cancellation_does_not_interrupt_one_task_twice(queue: FairQueue, redis: Redis, runs: Runs) -> None:
    """The first task can't be interrupted yet; the worker must remember meanwhile that it was canceled."""
    ids = [push(queue, "deaf", "deaf"), push(queue, "awaited", "other")]
    worker = Running(AsyncWorker)
    eventually(lambda: set(runs.begun) == {"deaf", "other"})
    queue.cancel(ids[0])
    eventually(lambda: received(redis))
    queue.cancel(ids[1])
    eventually(lambda: runs.stopped == ["other"])
    runs.gate.set()
    worker.join()
    assert queue.get_stats().states["canceled"] == 2
    assert queue.workers() == []
    assert queue.check_invariants() == []
