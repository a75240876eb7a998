"""The server goes and comes back."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.lease_renewal import LeaseRenewal
from django_fairque.worker.leases.outage import Outages
from tests.worker.conftest import WorkerProcess, eventually, recorded
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from tests.conftest import MakeServer


@pytest.mark.thorough
def test_a_worker_outlives_its_server(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with WorkerProcess(server, tmp_path) as worker:
        worker.wait_ready()
        with server.client() as client:
            queue = FairQueue(client)
            task = Task.create("ann", 3, {"args": [1.0], "kwargs": {}}, name="nap_local")
            queue.push(task)
            eventually(lambda: queue.get_task(task.task_id).state is TaskState.STARTED)
            server.kill()
            eventually(lambda: worker.health().get("status") == "unhealthy")
            server.start()
            back = time.monotonic()
            eventually(lambda: queue.get_task(task.task_id).state is TaskState.FINISHED)
            another = Task.create("ann", 3, {"args": [1, 1], "kwargs": {}}, name="add")
            queue.push(another)
            eventually(lambda: queue.get_task(another.task_id).state is TaskState.FINISHED)
            assert time.monotonic() - back < 10  # the worker needs about half a second
            assert queue.history(task.task_id) == []
            eventually(lambda: worker.health().get("status") == "healthy")
            assert queue.check_invariants() == []
        assert worker.log.count("the server can't be reached") <= 2  # each process logs the line once
        assert worker.stop() == 0


def test_a_worker_may_start_before_its_server(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    server.kill()
    with WorkerProcess(server, tmp_path, TEST_SCHEDULE="noop") as worker:
        eventually(lambda: worker.health().get("reasons"), 10)
        assert worker.health()["status"] == "unhealthy"
        assert "the server does not answer" in worker.health()["reasons"]
        (line, *_) = worker.log.splitlines()
        assert "ERROR" in line
        assert "the server can't be reached" in line
        assert line.endswith("; trying again until it works")
        server.start()
        eventually(lambda: worker.health().get("status") == "healthy")
        with server.client() as client:
            queue = FairQueue(client)
            eventually(lambda: [schedule.name for schedule in queue.schedules.list()] == ["noop"])
        assert "SCHEDULES" not in worker.log
        assert worker.stop() == 0


def test_a_worker_that_waits_for_its_server_can_be_stopped(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    server.kill()
    with WorkerProcess(server, tmp_path) as worker:
        eventually(lambda: "can't be reached" in worker.log)
        stop_sent_at = time.monotonic()
        worker.send(signal.SIGTERM)
        assert worker.wait() in (0, 1)
        assert time.monotonic() - stop_sent_at < 10
        assert "stopping: 0 running tasks" in worker.log
        assert "has stopped" in worker.log
        assert not worker.health_file.exists()


@pytest.mark.slow  # the test takes 6 seconds
def test_an_idle_worker_stops_without_waiting_for_a_dead_server(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    with WorkerProcess(server, tmp_path, "--processes", "2") as worker:
        worker.wait_ready(2)
        server.kill()
        eventually(lambda: worker.health().get("status") == "unhealthy")
        stop_sent_at = time.monotonic()
        assert worker.stop() == 1, "the worker could not reach the server"
        assert time.monotonic() - stop_sent_at < 10  # the worker needs about 4 s
        assert "not everything could be given back" in worker.log
        assert "worker process" not in worker.log, "its processes end by themselves"


def test_a_worker_that_can_not_renew_its_leases_stops_its_tasks(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with WorkerProcess(server, tmp_path, lease_seconds="1.5") as worker:
        worker.wait_ready()
        with server.client() as client:
            queue = FairQueue(client)
            task = Task.create("ann", 3, {"args": [8.0], "kwargs": {}}, name="nap", timeout=60)
            queue.push(task)
            starts = eventually(lambda: recorded(client, STARTED))
            server.kill()
            eventually(lambda: "its leases could not be renewed in time" in worker.log)
            server.start()
            eventually(lambda: len(recorded(client, STARTED)) > len(starts))
            assert recorded(client, ENDED) == []
            assert {attempt.kind for attempt in queue.history(task.task_id)} <= {"released", "lease_ended"}
            queue.cancel(task.task_id)


@pytest.mark.parametrize("shards", [pytest.param("1", marks=pytest.mark.slow), "3"])
def test_a_burst_does_not_wait_for_a_silent_server(make_server: MakeServer, tmp_path: Path, shards: str) -> None:
    server = make_server()
    server.kill()
    began = time.monotonic()
    with WorkerProcess(server, tmp_path, "--burst", TEST_SHARDS=shards, FAIRQUE_QUEUE__REQUEST_TIMEOUT="0.7") as worker:
        assert worker.wait() == 1
        assert time.monotonic() - began < 15  # a run takes 5 s, most of them for Python and the attempt to give back
        lines = [line for line in worker.log.splitlines() if "giving up" in line]
        assert len(lines) == 1
        assert "the server can't be reached" in lines[0]
        assert lines[0].endswith("; giving up: it has not answered once in 0.7 s (REQUEST_TIMEOUT)")
        assert "until it works" not in worker.log
        assert "given back" not in worker.log, "there was nothing to be given back"
        assert "ResourceWarning" not in worker.log
        assert not worker.health_file.exists()


def test_a_burst_waits_for_a_server_that_comes_in_time(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with server.client() as client:
        FairQueue(client).push(Task.create("ann", 3, {"args": [1, 1], "kwargs": {}}, name="add"))
    server.kill()
    with WorkerProcess(server, tmp_path, "--burst", FAIRQUE_QUEUE__REQUEST_TIMEOUT="15") as worker:
        eventually(lambda: "trying again for 15 s" in worker.log)
        server.start()
        assert worker.wait() == 0
        with server.client() as client:
            assert FairQueue(client).get_stats().states["finished"] == 1


@pytest.mark.slow  # the test takes 7 seconds
def test_a_burst_waits_for_a_server_that_ends_during_the_burst(make_server: MakeServer, tmp_path: Path) -> None:
    """The worker must report the running task, so it waits longer than for a server that never answered."""
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with server.client() as client:
        queue = FairQueue(client)
        task = Task.create("ann", 3, {"args": [3.0], "kwargs": {}}, name="nap_local")
        queue.push(task)
        with WorkerProcess(server, tmp_path, "--burst", FAIRQUE_QUEUE__REQUEST_TIMEOUT="0.1") as worker:
            # A running task proves that the process got the answer; the state on the server does not.
            eventually(lambda: any(int(process["running"]) for process in worker.health().get("processes", ())))
            server.kill()
            eventually(lambda: worker.log.count("trying again until it works") == 2)  # the task has ended meanwhile
            server.start()
            assert worker.wait() == 0
            assert "giving up" not in worker.log
            assert queue.get_task(task.task_id).state is TaskState.FINISHED


@pytest.mark.parametrize(("shards", "seconds"), [(1, 0.0), (4, 12.0)])
def test_a_worker_waits_for_a_silent_server_only_with_several_shards(redis: Redis, shards: int, seconds: float) -> None:
    """Several queues of one shard each are on one server: if it hangs, nothing is served."""
    queues = [FairQueue(redis, name, QueueConfig(shards=shards)) for name in ("one", "two")]
    outages = Outages([shard for queue in queues for shard in queue.shards])
    lease_renewal = LeaseRenewal(queues, WorkerOptions("w", queues=("one", "two")), outages, list, str)
    assert lease_renewal.max_silence(10.0) == seconds
