"""A server that has lost data is noticed by those who work."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import AsyncWorker, Worker, get_queue, signals, task
from django_fairque.conf import close_queues
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import registry
from tests.worker.conftest import WorkerProcess, eventually, recorded
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings

    from django_fairque.engine.statistics.health import Alert
    from tests.conftest import MakeServer


@pytest.fixture
def received() -> Iterator[list[Alert]]:
    found: list[Alert] = []

    def receiver(sender: str, alert: Alert, **_: Any) -> None:
        assert sender == alert.queue
        found.append(alert)

    signals.data_lost.connect(receiver)
    yield found
    signals.data_lost.disconnect(receiver)


@pytest.mark.slow
def test_worker_processes_drop_tasks_and_continue(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    with WorkerProcess(server, tmp_path, lease_seconds="3") as worker:
        worker.wait_ready()
        with server.client() as client:
            queue = FairQueue(client)
            push(queue, "nap", 15.0)
            eventually(lambda: recorded(client, STARTED))
            beats = [heartbeat(queue) for _ in range(2)]
            assert beats[0].epoch == beats[1].epoch
            server.restart()
            eventually(lambda: "has lost the queue's data: it came back empty" in worker.log)
            eventually(lambda: "1 running tasks are given up" in worker.log)
            push(queue, "nap", 0.0)  # the processes have started again
            eventually(lambda: recorded(client, ENDED))
            assert queue.check_invariants() == []
        assert worker.log.count("has lost the queue's data") == 1
        assert worker.stop() == 0


@pytest.mark.slow
def test_an_unknown_lease_is_not_renewed_for_ever(make_server: MakeServer, tmp_path: Path) -> None:
    """A failover to a replica that is behind has the same effect: an ended task is running again on the server."""
    server = make_server()
    with WorkerProcess(server, tmp_path, lease_seconds="3") as worker:
        worker.wait_ready()
        with server.client() as client:
            queue = FairQueue(client)
            push(queue, "nap", 1.0)
            eventually(lambda: recorded(client, STARTED))
            client.save()
            eventually(lambda: queue.get_stats().states["finished"])
            server.kill()
            server.start()
            assert queue.get_stats().states["started"] == 1
            eventually(lambda: queue.get_stats().states["finished"])
            assert len(recorded(client, STARTED)) == 2
            assert queue.check_invariants() == []
        assert "another server answers" in worker.log


def push(queue: FairQueue, name: str, *args: object) -> None:
    from django_fairque.engine.model.task import Task

    queue.push(Task.create("ann", 3, {"args": args, "kwargs": {}}, name=name, timeout=60))


def heartbeat(queue: FairQueue) -> Any:
    return queue.heartbeat("somebody", {}, ttl=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", [Worker, AsyncWorker])
@pytest.mark.parametrize("loss", ["emptied", "went_back"])
def test_a_lost_server_state_is_announced_by_a_signal(
    make_server: MakeServer,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    received: list[Alert],
    kind: Any,
    loss: str,
) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "WORKER": {"LEASE_SECONDS": 1.2}}
    monkeypatch.setattr(registry, "_tasks", {})

    @task(name="good")
    def good() -> None: ...

    worker = kind(concurrency=1)
    thread = threading.Thread(target=worker.run if kind is Worker else lambda: run(worker))
    thread.start()
    try:
        for _ in range(3):
            good.enqueue()
        eventually(lambda: get_queue().get_stats().states["finished"] == 3)
        seen = heartbeat(get_queue())
        assert seen.token == 3
        time.sleep(0.5)  # a heartbeat of the worker has seen as much: they are 0.4 s apart
        with server.client() as client:
            if loss == "emptied":
                client.flushall()
            else:
                client.hset("fq:{default:0}:stats", mapping={"revision": "", "token": 1})
        (alert,) = eventually(lambda: received)
        assert (alert.kind, alert.queue, alert.task_id, alert.leases) == (
            loss,
            "default",
            "",
            0 if loss == "emptied" else 2,
        )
        assert str(alert).startswith("the server has lost")
    finally:
        worker.stop()
        thread.join(20)
        close_queues()


def run(worker: AsyncWorker) -> None:
    import asyncio

    asyncio.run(worker.run())
