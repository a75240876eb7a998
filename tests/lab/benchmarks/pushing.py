"""Measures the cost of a push for its caller, compared with a bare ``SET``, and the client's part of that cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psutil

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.scripts import functions, load
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from .table import Table

PAYLOAD = "x" * 198

_FLOORS = """#!lua name=floors
redis.register_function('nothing', function() return 1 end)
redis.register_function('only_commands', function(keys, args)
  local stats, user, task, minute = keys[1], keys[2], keys[3], keys[4]
  redis.call('HMGET', stats, 'clock', 'token', 'stamp', 'arrival', 'vtime', 'mean', 'look', 'paused', 'depth:1', 'depth:2',
    'depth:3', 'depth:4', 'depth:5', 'depth:6', 'pushed', 'started', 'finished', 'retried')
  redis.call('TIME')
  redis.call('EXISTS', task, keys[5])
  redis.call('HGETALL', user)
  redis.call('EXISTS', keys[6])
  redis.call('EXISTS', minute)
  redis.call('HSET', task, 'state', 'queued', 'user', 'u1', 'priority', '3', 'created', '1790000000000000', 'max_retries', '3',
    'name', 'bench.noop')
  redis.call('MSET', keys[5], args[1])
  redis.call('HSET', user, 'ready:3', '7', 'since', '1790000000000000')
  redis.call('ZADD', keys[7], '1790000000000000', task)
  redis.call('ZADD', keys[6], '1790000000000000', task)
  redis.call('HINCRBY', minute, 'pushed', 1)
  redis.call('HSET', stats, 'clock', '1790000000000000', 'stamp', '1', 'depth:3', '7', 'pushed', '7', 'look', '7')
  return 1
end)
"""
"""A function that does nothing, and one that runs a push's commands, ready made: no rule, no check, no arithmetic."""

_AT_ONCE = """#!lua name=at_once
redis.register_function('%s', function() return {'1790000000000000', '1'} end)
"""
"""Answers as if it had pushed: what is left is the client's part of a push, and the way there and back."""


def run(table: Table, *, quick: bool) -> None:
    with Server() as server, server.client() as client:
        _singles(table, client, server.pid, 6 if quick else 30)
    with Server() as server, server.client() as client:
        _bulk(table, client, server.pid, 3 if quick else 7)


class Processor:
    """Seconds of processor time of this thread and of the server: what is left to compare on a machine that others use."""

    def __init__(self, server: int) -> None:
        self._server = psutil.Process(server)
        self.client = self.server = 0.0

    def add(self, call: Callable[[], object]) -> float:
        """Count what a call takes; returns its seconds by the clock."""
        client, server, started = time.thread_time(), self._of_server(), time.perf_counter()
        call()
        took = time.perf_counter() - started
        self.client += time.thread_time() - client
        self.server += self._of_server() - server
        return took

    def _of_server(self) -> float:
        times = self._server.cpu_times()
        return float(times.user + times.system)


def _singles(table: Table, client: Redis, server: int, rounds: int, count: int = 300) -> None:
    """In short turns, so that all of them meet the same load."""
    queue = FairQueue(client)
    queue.push(pushed(0))
    client.function_load(_FLOORS)
    at_once = _AT_ONCE % load("push").function
    keys = ["stats", "user", "task", "minute", "payload", "lane", "queued"]
    calls: dict[str, Callable[[int], Any]] = {
        "a bare SET": lambda i: client.set(f"bare{i}", PAYLOAD),
        "a function that does nothing": lambda i: client.fcall("nothing", 1, f"bare{i}"),
        "a function of a push's bare commands": lambda i: client.fcall(
            "only_commands", 7, *(f"{key}{i}" if key in ("task", "payload") else key for key in keys), PAYLOAD
        ),
        "a push that is answered at once": lambda i: queue.push(pushed(i)),
        "a push": lambda i: queue.push(pushed(i)),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    busy = {name: Processor(server) for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            if name == "a push that is answered at once":
                _replace(client, functions(), at_once)
            elif name == "a push":
                _replace(client, at_once, functions())
            numbers = range(number * count, (number + 1) * count)
            took = busy[name].add(lambda numbers=numbers, call=call: [call(i) for i in numbers])  # type: ignore[misc]
            times[name].append(took / count * 1e6)
    for name, values in times.items():
        table.add(name, values, "µs")
        table.add("  processor, client", busy[name].client / rounds / count * 1e6, "µs")
        table.add("  processor, server", busy[name].server / rounds / count * 1e6, "µs")
    for name, values in times.items():
        if values is not times["a bare SET"]:
            ratios = [bare / value for bare, value in zip(times["a bare SET"], values, strict=True)]
            table.add(f"{name} over a bare SET", ratios, "×", "≥ 0.7 ×" if name == "a push" else "")


def pushed(i: int) -> Task:
    return Task.create(f"u{i % 100}", 3, PAYLOAD, name="bench.noop")


def _replace(client: Redis, old: str, new: str) -> None:
    """Replace a library in the same server, because another server might run on another core."""
    client.function_delete(old.split("name=")[1].split(maxsplit=1)[0])
    client.function_load(new)


def _bulk(table: Table, client: Redis, server: int, rounds: int, size: int = 15_000) -> None:
    queue = FairQueue(client)
    busy = Processor(server)

    def push() -> None:
        queue.push_batch([pushed(i) for i in range(size)])

    table.add("bulk push, made and sent", [size / busy.add(push) for _ in range(rounds)], "tasks/s", "≥ 60,000")
    table.add("  processor, client, per task", busy.client / rounds / size * 1e6, "µs")
    table.add("  processor, server, per task", busy.server / rounds / size * 1e6, "µs")
