"""Fills a queue like that of a large site, for the benchmark and the test of the admin's pages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.worker_activity import ReportedTask, encode_activity
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.queue.queue import FairQueue

SLICE = 2000
"""The most tasks that one push accepts if they depend on others."""
LEASE = 1e6
NOISY = "noisy"
PAYLOAD = {"order": 7, "text": "x" * 100}


@dataclass(frozen=True)
class Scale:
    """The numbers of tasks, users and so on; `of` returns a smaller scale that still has a few of each."""

    queued: int = 1_000_000
    users: int = 100_000
    dead: int = 100_000
    noisy: int = 20_000
    some: int = 5_000
    """Scheduled, deferred, started, finished and canceled tasks each."""
    few: int = 200
    """Schedules and workers each."""
    run: int = 1_000
    """Tasks of the one run."""

    @classmethod
    def of(cls, part: float) -> Scale:
        return cls(**{name: max(10, round(getattr(cls, name) * part)) for name in cls.__dataclass_fields__})


def fill(queue: FairQueue, scale: Scale, now: float | None = None) -> None:
    """Through the public surface, as of ``now``; what ends is pushed first, so that it is what is popped."""
    push(queue, (task(f"lost{n % 1000:03}", n, name=f"shop.{n % 40}", max_retries=0) for n in range(scale.dead)), now)
    work(queue, scale.dead, _fail, now)
    push(queue, (task(f"done{n % 100}", n) for n in range(scale.some)), now)
    work(queue, scale.some, lambda lease, _: Outcome.finish(lease, "done", took=0.5), now)
    ids = push(queue, (task(f"gone{n % 100}", n) for n in range(scale.some)), now)
    queue.cancel_many(ids, now=now)
    push(queue, (task(f"slow{n % 100}", n) for n in range(scale.some)), now)
    for first in range(0, scale.some, 1000):
        queue.pop_batch(min(1000, scale.some - first), "worker-0", lease=LEASE, now=now)
    push(queue, (task(NOISY, n, name="shop.bulk") for n in range(scale.noisy)), now)
    push(queue, (task(f"user{n % scale.users:06}", n) for n in range(scale.queued - scale.noisy)), now)
    push(queue, (task(f"later{n % 100}", n, execute_after=4e9 + n) for n in range(scale.some)), now)
    queue.push(task(NOISY, 0, task_id="awaited"), now=now)
    push(queue, (task(f"waits{n % 100}", n, depends_on=["awaited"]) for n in range(scale.some)), now)
    _graph(queue, scale.run, now)
    for n in range(scale.few):
        queue.schedules.add(f"schedule{n:03}", task=task("cron", n), cron=f"{n % 60} 3 * * *", now=now)
    beat(queue, scale.few, now)


def beat(queue: FairQueue, workers: int, now: float | None = None) -> None:
    """The heartbeats of these processes, with the tasks in their slots."""
    at = time.time() if now is None else now
    tasks = [ReportedTask(f"id-{n}", "shop.send", "ann", at - n, line=f"shop/tasks.py:{n} send") for n in range(8)]
    slots = [([NOISY, "ann", "bob"] * 20, task) for task in tasks]
    activity = encode_activity(at, slots)
    for n in range(workers):
        options = WorkerOptions(f"worker-{n}", queues=("default",), users=("ann", "bob"), concurrency=4)
        info = worker_info(options, done=n, running=2, status="working", activity=activity)
        queue.heartbeat(f"worker-{n}", info, ttl=LEASE, now=now)


def task(user: str, n: int, *, name: str = "shop.send", **options: Any) -> Task:
    return Task.create(user, 1 + n % 6, PAYLOAD, name=name, **options)


def push(queue: FairQueue, tasks: Iterable[Task], now: float | None = None) -> list[str]:
    ids: list[str] = []
    some: list[Task] = []
    for task in tasks:
        some.append(task)
        if len(some) == SLICE:
            ids += [result.task_id for result in queue.push_batch(some, now=now)]
            some = []
    return ids + [result.task_id for result in queue.push_batch(some, now=now)]


def work(queue: FairQueue, count: int, outcome: Callable[[Lease, int], Outcome], now: float | None = None) -> None:
    """Start and end ``count`` tasks."""
    leases = queue.pop_batch(min(1000, count), "worker-0", now=now)
    done = 0
    while leases:
        outcomes = [outcome(lease, done + n) for n, lease in enumerate(leases)]
        done += len(outcomes)
        leases = queue.settle(outcomes, min(1000, count - done), worker="worker-0", now=now).leases


def _fail(lease: Lease, n: int) -> Outcome:
    return Outcome.fail(lease, f"ConnectionError: shop {n % 50} can't be reached", delay=None)


def _graph(queue: FairQueue, size: int, now: float | None) -> None:
    """A run: layers of ten, each task waiting for one of the layer before."""
    tasks = [
        task("graph", n, task_id=f"graph{n}", depends_on=[f"graph{n - 10}"] if n >= 10 else []) for n in range(size)
    ]
    queue.push_graph(tasks, "the-run", now=now)
