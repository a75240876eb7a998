"""A scenario: a state made on purpose, and the operation that is ended at each of its calls there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.lab.proof.random_history import LEASE, NOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.options import QueueConfig

    Act = Callable[[FairQueue], Any]

P = "fq:{default:0}:"


@dataclass(frozen=True)
class Scenario:
    """``prepare`` makes the state and returns the operation.

    ``completes``: others bring it to its end without a repetition. ``is_exact``: repeated, it ends as it would have to the
    state of each task.
    """

    prepare: Callable[[Scene], Act]
    shards: int = 1
    completes: bool = False
    is_exact: bool = True

    def __str__(self) -> str:
        return self.prepare.__name__


class Scene:
    """A queue, what time it is when the operation is done, and which task must not start before which has ended."""

    def __init__(self, redis: Redis, config: QueueConfig) -> None:
        self.redis = redis
        self.config = config
        self.queue = FairQueue(redis, config=config)
        self.now = NOW
        self.order: list[tuple[str, str]] = []

    def prepare(self, scenario: Scenario) -> None:
        self.act: Act = scenario.prepare(self)

    def task(self, task_id: str | None, user: str = "a", priority: int = 3, **options: Any) -> Task:
        options.setdefault("max_retries", 1)
        if task_id:
            self.order += [(parent, task_id) for parent in options.get("depends_on", ())]
        return Task.create(user, priority, {"of": task_id}, task_id=task_id, **options)

    def push(self, *task_ids: str, user: str = "a", priority: int = 3, **options: Any) -> None:
        for task_id in task_ids:
            self.queue.push(self.task(task_id, user, priority, **options), now=self.now)

    def graph(self, *tasks: Task, run: str | None = None) -> None:
        self.queue.push_graph(list(tasks), run, now=self.now)

    def pop(self, n: int = 1, worker: str = "w1") -> list[Lease]:
        return self.queue.pop_batch(n, worker, lease=LEASE, now=self.now)

    def end(self, *task_ids: str, how: str = "finished") -> None:
        """Start these, which are all that can be started, and end them."""
        leases = self.pop(len(task_ids))
        assert {lease.task_id for lease in leases} == set(task_ids)
        for lease in leases:
            if how == "finished":
                self.queue.finish(lease, 1, now=self.now)
            else:
                self.queue.fail(lease, "x", retry=False, now=self.now)

    def user_of(self, shard: int) -> str:
        number = self.config.shards
        return next(name for name in map("user-{}".format, range(1000)) if compute_bucket(name) % number == shard)
