"""What the engine costs its server: commands, time, bytes; and who is next among many users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.models import Task
from django_fairque.engine.queue import FairQueue
from tests.counting import OUTSIDE, counted
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

    from .table import Table

PAYLOAD = "x" * 198


def tasks(users: int, each: int, prefix: str = "u") -> Iterator[Task]:
    for _ in range(each):
        for i in range(users):
            yield Task.create(f"{prefix}{i}", 3, PAYLOAD, name="bench.noop")


def load(queue: FairQueue, made: Iterator[Task]) -> None:
    batch: list[Task] = []
    for task in made:
        batch.append(task)
        if len(batch) == 3000:
            queue.push_batch(batch)
            batch = []
    queue.push_batch(batch)


def cost(client: Redis, call: Callable[[], Any], times: int) -> tuple[float, float]:
    """Server commands inside the scripts, and microseconds of server time, of one call."""

    def repeated() -> None:
        for _ in range(times):
            call()

    stats = counted(client, repeated)
    commands = sum(stat["calls"] for name, stat in stats.items() if name not in OUTSIDE)
    return commands / times, stats["fcall"]["usec"] / times


def run(table: Table, *, quick: bool) -> None:
    base = 0.0
    for users in (100, 10_000) if quick else (100, 10_000, 1_000_000):
        base = _on_its_own(_pops, table, users, base, 10_000 if quick else 100_000) or base
    _on_its_own(_newcomers, table, 10_000 if quick else 100_000)
    _on_its_own(_bytes, table)


def _on_its_own(measure: Callable[..., Any], table: Table, *arguments: Any) -> Any:
    """On a server of its own: one that held much before takes longer for every allocation (glibc's, not jemalloc)."""
    with Server() as server, server.client() as client:
        return measure(table, client, *arguments)


def _pops(table: Table, client: Redis, users: int, base: float, blocked: int) -> float:
    """Returns the server time of a pop, in microseconds."""
    queue = FairQueue(client)

    def pop() -> None:
        queue.pop("w", lease=1e6)

    load(queue, tasks(users, 2 if users > 10_000 else max(2, 6_000 // users)))
    for _ in range(200):
        pop()
    table.add(f"pop of one, {users:,} users: server commands", cost(client, pop, 1)[0], "", "≤ 20")
    commands, _ = cost(client, lambda: queue.pop_batch(50, "w", lease=1e6), 1)
    table.add(f"pop of 50, {users:,} users: commands per task", commands / 50, "", "≤ 14")
    median = table.add(f"pop of one, {users:,} users: server time", [cost(client, pop, 200)[1] for _ in range(5)], "µs")
    if base:
        table.add(f"pop of one, {users:,} users over 100", median / base, "×", "≤ 1.2 ×")
        return base
    load(queue, tasks(blocked, 1, "paused"))
    for i in range(blocked):
        queue.user(f"paused{i}").pause()
    ratios = [cost(client, pop, 200)[1] / median for _ in range(5)]
    table.add(f"the same with {blocked:,} paused users beside", ratios, "×", "≤ 1.2 ×")
    return median


def _newcomers(table: Table, client: Redis, users: int) -> None:
    queue = FairQueue(client)
    load(queue, tasks(users, 2))
    queue.pop_batch(50, "w", lease=1e6)
    first = 0
    for trial in range(100):
        queue.push(Task.create(f"newcomer{trial}", 1, None))
        lease = queue.pop("w", lease=1e6)
        first += lease is not None and lease.user_id == f"newcomer{trial}"
        queue.pop_batch(3, "w", lease=1e6)
    table.add(f"newcomer is next among {users:,} users in backlog", first, "of 100", "100 of 100")


def _bytes(table: Table, client: Redis) -> None:
    queue = FairQueue(client)
    queue.push_batch([Task.create("a", 3, PAYLOAD)])
    before = client.info("memory")["used_memory"]
    load(queue, tasks(100, 500))
    table.add("bytes per queued task", (client.info("memory")["used_memory"] - before) / 50_000, "", "≤ 750")
