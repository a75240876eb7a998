"""`fairque_worker --metrics-port`: the supervisor's own figures, for as long as it lives."""

from __future__ import annotations

import re
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from tests.servers import Server
    from tests.worker.conftest import WorkerProcess


def fetch(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def port_of(worker: WorkerProcess) -> int:
    found = eventually(lambda: re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", worker.log))
    return int(found[1])


def figures(port: int) -> dict[tuple[str, str | None], float]:
    """By name and queue."""
    return {
        (sample.name.removeprefix("fairque_"), sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(fetch(port, "/metrics"))
        for sample in family.samples
    }


def test_a_worker_serves_metrics_as_long_as_it_runs(workers: Workers) -> None:
    worker = workers.start("--metrics-port", "0", "--processes", "2").wait_ready(2)
    port = port_of(worker)
    assert fetch(port, "/live") == '{"status": "live"}'
    workers.run("add", 1, 2)
    found = figures(port)
    assert found["tasks_finished_total", "default"] == 1
    assert found["workers", "default"] == 2
    assert found["queue_up", "mail"] == 1
    assert worker.stop() == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.thorough
def test_a_worker_s_metrics_show_its_processes_and_slots(server: Server, workers: Workers) -> None:
    worker = workers.start("--metrics-port", "0", "--processes", "2", "--concurrency", "3").wait_ready(2)
    port = port_of(worker)
    found = eventually(lambda: (now := figures(port))["worker_healthy", None] and now)
    assert (found["worker_processes", None], found["worker_slots", None], found["worker_slots_busy", None]) == (2, 6, 0)
    assert found["worker_memory_bytes", None] > 10_000_000
    workers.push("nap", 60)
    eventually(lambda: figures(port)["worker_slots_busy", None] == 1)
    server.kill()
    try:
        eventually(lambda: figures(port)["worker_healthy", None] == 0)
        assert figures(port)["server_up", None] == 0
    finally:
        server.start()


def test_a_worker_whose_metrics_port_is_in_use_ends_with_one_line(workers: Workers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        worker = workers.start("--metrics-port", str(port))
        assert worker.wait() == 1
    (line,) = worker.log.strip().splitlines()
    assert f"metrics can't be served on port {port} of 127.0.0.1" in line


def test_a_host_without_a_port_is_a_mistake(workers: Workers) -> None:
    worker = workers.start("--metrics-host", "0.0.0.0")
    assert worker.wait() == 1
    (line,) = worker.log.strip().splitlines()
    assert "--metrics-host goes with --metrics-port" in line
