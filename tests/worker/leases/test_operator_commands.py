"""Commands of operators to workers: drain, work again, stop. With real processes, and with the classes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.leasing.lease_ops import WorkerCommand
from django_fairque.tasks import registry
from django_fairque.tasks.registry import task
from django_fairque.worker import AsyncWorker, Worker
from django_fairque.worker.leases.heartbeat import OperatorCommands
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push

LEASE = {"FAIRQUE_WORKER__LEASE_SECONDS": "1.5"}
"""So that there are two heartbeats a second."""


def statuses(queue: FairQueue) -> set[str]:
    return {record.info["status"] for record in queue.workers()}


def test_a_command_is_executed_once() -> None:
    commands = OperatorCommands()
    assert commands.new_command("default", None) == ""
    assert commands.new_command("default", WorkerCommand("drain", 5.0)) == "drain"
    assert commands.new_command("default", WorkerCommand("drain", 5.0)) == ""
    assert commands.new_command("default", WorkerCommand("drain", 6.0)) == "drain"
    assert commands.new_command("mail", None) == ""
    assert commands.new_command("mail", WorkerCommand("stop", 1.0)) == "stop"


def test_a_command_for_an_earlier_worker_of_the_same_id_is_ignored() -> None:
    assert OperatorCommands().new_command("default", WorkerCommand("stop", 5.0)) == ""


@pytest.mark.thorough
def test_a_draining_worker_starts_no_task_until_it_is_resumed(workers: Workers) -> None:
    worker = workers.start("--concurrency", "1", **LEASE).wait_ready()
    workers.push("nap", 1.5)
    workers.wait_started()
    (record,) = eventually(workers.queue.workers)
    assert workers.queue.set_worker_command(record.worker, "drain")
    eventually(lambda: statuses(workers.queue) == {"draining"})
    workers.wait_ended()
    later = workers.push("nap", 0.0)
    eventually(lambda: workers.queue.workers()[0].seen_at > record.seen_at + 1.5)
    assert workers.queue.get_task(later).state.value == "queued"
    assert len(worker.children()) == 1
    assert workers.queue.set_worker_command(record.worker, "work")
    workers.wait_ended(2)
    eventually(lambda: statuses(workers.queue) == {"working"})
    assert "got the command to drain" in worker.log


def test_a_command_is_for_all_processes_of_a_worker_and_their_successors(workers: Workers) -> None:
    worker = workers.start("--processes", "2", **LEASE).wait_ready(2)
    first = eventually(lambda: len(found := workers.queue.workers()) == 2 and found)[0]
    workers.queue.set_worker_command(first.worker, "drain")
    eventually(lambda: statuses(workers.queue) == {"draining"})
    worker.children()[0].kill()
    eventually(
        lambda: (
            first.worker not in {record.worker for record in workers.queue.workers()}
            or len(workers.queue.workers()) == 2
        )
    )
    eventually(lambda: len(worker.children()) == 2 and len(workers.queue.workers()) == 2)
    assert statuses(workers.queue) == {"draining"}


@pytest.mark.thorough
def test_a_stop_command_ends_the_worker_gracefully(workers: Workers) -> None:
    worker = workers.start("--processes", "2", "--concurrency", "1", **LEASE).wait_ready(2)
    workers.push("nap", 2.0)
    workers.wait_started()
    record = eventually(workers.queue.workers)[0]
    assert workers.queue.set_worker_command(record.worker, "stop")
    assert worker.wait() == 0
    assert len(workers.ended()) == 1
    assert workers.queue.workers() == []


class TestClasses:
    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture(autouse=True)
    def ran(self, server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The project's settings, and what the task was called with."""
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "WORKER": {"LEASE_SECONDS": 1.5}}
        monkeypatch.setattr(registry, "_tasks", {})
        numbers: list[int] = []

        @task(name="note")
        def note(number: int) -> None:
            numbers.append(number)

        return numbers

    def test_a_worker_executes_each_command(self, queue: FairQueue, push: Push, ran: list[int]) -> None:
        thread = threading.Thread(target=Worker(worker_id="w").run)
        thread.start()
        self._send_each(queue, push, ran)
        thread.join(20)
        assert not thread.is_alive()

    async def test_an_async_worker_executes_each_command(self, queue: FairQueue, push: Push, ran: list[int]) -> None:
        running = asyncio.ensure_future(AsyncWorker(worker_id="w").run())
        await asyncio.to_thread(self._send_each, queue, push, ran)
        await asyncio.wait_for(running, 20)

    @staticmethod
    def _send_each(queue: FairQueue, push: Push, ran: list[int]) -> None:
        eventually(queue.workers)
        assert queue.set_worker_command("w", "drain")
        eventually(lambda: statuses(queue) == {"draining"})
        push("note", 1)
        seen = queue.workers()[0].seen_at
        eventually(lambda: queue.workers()[0].seen_at > seen)
        assert ran == []
        assert queue.set_worker_command("w", "work")
        eventually(lambda: ran == [1])
        assert queue.set_worker_command("w", "stop")
        eventually(lambda: not queue.workers())
