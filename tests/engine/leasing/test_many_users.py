"""A pop among many users costs what one among a hundred does: in commands on each server, in time where memory is jemalloc's.

glibc's allocator, which the embedded server has, scatters what a script asks for over all of the memory, so time is not compared
there (docs/contributing/performance.md has the ratio).
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from tests.conftest import MakeServer
from tests.engine.conftest import task

FEW = 100
MANY = 100_000
"""On servers on which time is compared. `python -m tests.lab.benchmarks engine` has a million, which take minutes to fill."""
MOST = 1.2
"""Processor time of a pop among many users over that of one among a hundred."""
ROUNDS, POPS = 20, 50
SERIES = 3
"""Rounds are repeated as often as this if their ratio is too large: other programs of a busy machine take the caches."""


def fill(redis: Redis, users: int, tasks_each: int) -> FairQueue:
    queue = FairQueue(redis)
    for first in range(0, users, 3000):
        some = range(first, min(users, first + 3000))
        queue.push_batch([task(f"u{i}", payload="x" * 198) for i in some for _ in range(tasks_each)])
    for _ in range(50):
        queue.pop("w", lease=1e6)
    return queue


def processor_seconds(redis: Redis) -> float:
    found = redis.info("cpu")
    return float(found["used_cpu_user_main_thread"]) + float(found["used_cpu_sys_main_thread"])


def pops(redis: Redis, queue: FairQueue) -> float:
    """Microseconds of the server's processor time for a pop: other programs of the machine do not count in it."""
    before = processor_seconds(redis)
    for _ in range(POPS):
        assert queue.pop("w", lease=1e6)
    return (processor_seconds(redis) - before) / POPS * 1e6


def on_one_core(process: int) -> None:
    """Let a process run on one core only: on different cores, the same code has taken 0.8 to 1.2 times as long."""
    if hasattr(os, "sched_setaffinity"):
        core = {max(os.sched_getaffinity(0))}
        for thread in Path(f"/proc/{process}/task").iterdir():
            os.sched_setaffinity(int(thread.name), core)


def test_a_pop_takes_about_the_same_time_among_many_users(make_server: MakeServer) -> None:
    servers = [make_server(), make_server()]
    for server in servers:
        on_one_core(server.pid)
    with servers[0].client() as few, servers[1].client() as many:
        allocator = few.info("memory")["mem_allocator"]
        if not allocator.startswith("jemalloc"):
            pytest.skip(f"times are compared on servers whose memory is jemalloc's; that of this one is {allocator}'s")
        small, large = fill(few, FEW, 50), fill(many, MANY, 1)
        found: list[float] = []
        while len(found) < SERIES and (not found or min(found) > MOST):
            times = [(pops(few, small), pops(many, large)) for _ in range(ROUNDS)]
            found.append(statistics.median(among_many / among_few for among_few, among_many in times))
        assert min(found) <= MOST, found
