"""A look ends in time, is shared by those who ask at once, and names no host."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_fairque.conf import FairQueueConfig, get_queue
from django_fairque.monitoring import probe as module
from django_fairque.monitoring.probe import Probe, _CurrentRead
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings

QUEUES = {"default", "mail"}


@pytest.fixture(autouse=True)
def configured(server: Server, redis: Redis, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}}


def test_a_probe_reads_every_queue_and_closes_its_connections(redis: Redis) -> None:
    get_queue("mail").pause()
    before = len(redis.client_list())
    result = Probe(lambda queue: queue.is_paused()).read()
    assert (result.readings, result.troubles) == ({"default": False, "mail": True}, {})
    assert len(redis.client_list()) == before


def test_concurrent_readers_share_one_reading() -> None:
    arrivals, looks = threading.Semaphore(0), []

    def read(queue: FairQueue) -> int:
        if queue.name == "default":
            looks.append(queue.name)
            for _ in range(8 if len(looks) == 1 else 0):  # until all eight have come
                assert arrivals.acquire(timeout=10)
        return len(looks)

    class Counting(Probe[int]):
        def _current_read(self, config: FairQueueConfig) -> _CurrentRead[int]:
            current = super()._current_read(config)
            arrivals.release()
            return current

    probe = Counting(read)
    with ThreadPoolExecutor(8) as pool:
        results = [future.result() for future in [pool.submit(probe.read, 10) for _ in range(8)]]
    assert [result.readings for result in results] == [{"default": 1, "mail": 1}] * 8
    assert probe.read().readings == {"default": 2, "mail": 2}


def test_a_slow_reading_is_neither_awaited_nor_started_again() -> None:
    go_on, looks = threading.Event(), []

    def read(queue: FairQueue) -> None:
        looks.append(queue.name)
        go_on.wait(10)

    probe = Probe(read)
    for _ in range(3):
        began = time.monotonic()
        assert probe.read(within=0.05).troubles == dict.fromkeys(QUEUES, module.TIMED_OUT)
        assert time.monotonic() - began < 1
    assert looks == ["default"]
    go_on.set()


@pytest.fixture
def deaf() -> Iterator[str]:
    """A place that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        yield f"redis://:hunter2@{host}:{port}/0"


def test_problems_are_reported_without_hosts_and_passwords(
    deaf: str, settings: Settings, make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    evicting = make_server("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    for fairque, words in (
        ({"REDIS": {"URL": deaf}}, module.UNREACHABLE),
        ({"REDIS": {"URL": "redis://127.0.0.1:1"}}, module.UNREACHABLE),
        ({"REDIS": {"URL": "redis://127.0.0.1:1", "CLUSTER": True}}, module.UNREACHABLE),
        ({"REDIS": {"SENTINEL": {"SERVICE": "main", "NODES": ["127.0.0.1:1"]}}}, module.UNREACHABLE),
        ({"REDIS": {"URL": evicting.url}}, module.UNSUITABLE),
        ({"REDIS": {"HOSTT": "h"}}, module.MISCONFIGURED),
    ):
        settings.FAIRQUE = fairque
        began = time.monotonic()
        result = Probe(lambda queue: queue.get_stats()).read()
        assert result.troubles == {"default": words}, fairque
        assert time.monotonic() - began < 2
    assert "hunter2" not in caplog.text


def test_an_internal_error_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    def read(queue: FairQueue) -> str:
        if queue.name == "mail":
            raise RuntimeError("a fault")
        return "read"

    result = Probe(read).read()
    assert (result.readings, result.troubles) == ({"default": "read"}, {"mail": module.UNREADABLE})
    assert "RuntimeError: a fault" in caplog.text


def test_an_outage_and_its_end_are_logged_once(server: Server, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_fairque.monitoring")
    probe = Probe(lambda queue: queue.health())
    for happens in (None, server.kill, None, server.start, None):
        if happens is not None:
            happens()
        probe.read()
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in logged] == ["WARNING", "WARNING", "INFO"]
    assert logged[0][1].startswith("queue default: the server can't be reached: ")
    assert logged[0][1].count("the server can't be reached") == 1
    assert logged[2][1] == "all queues can be read again"


FORKS = """
import os, threading
import django
from django.conf import settings

settings.configure(FAIRQUE={"REDIS": {"URL": os.environ["TEST_SERVER"]}})
django.setup()
from django_fairque.monitoring.probe import Probe

go_on, begun = threading.Event(), threading.Event()

def read(queue):
    begun.set()
    go_on.wait(10)
    return queue.name

probe = Probe(read)
threading.Thread(target=probe.read, daemon=True).start()
assert begun.wait(10)
child = os.fork()
if not child:
    go_on.set()
    os._exit(0 if probe.read().readings == {"default": "default"} else 1)
go_on.set()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_reads_for_itself(server: Server) -> None:
    """Its parent forks while it looks, with a thread that the child does not have."""
    done = subprocess.run(
        # Python warns of forks of a process with threads, which servers do all the same.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS],
        env={**os.environ, "TEST_SERVER": server.url},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
