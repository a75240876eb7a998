"""A queue of four shards, users that live on a given one, and what tests ask of such a queue."""

from __future__ import annotations

import itertools
from itertools import islice
from typing import Any

from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, read_pages

SHARDS = 4
CONFIG = QueueConfig(shards=SHARDS, fair_by="tasks")


def users_of(shard: int, count: int, shards: int = SHARDS) -> list[str]:
    """Users that live on that one of the shards."""
    names = map("user-{}".format, itertools.count())
    return list(islice((name for name in names if compute_bucket(name) % shards == shard), count))


ONE, TWO, THREE = (users_of(shard, 1)[0] for shard in (0, 1, 2))


def names_of(queue: FairQueue) -> dict[str, TaskState]:
    found = read_pages(lambda cursor: queue.tasks(limit=1000, cursor=cursor))
    return {task.task_id: task.state for task in found}


def keys_of(redis: Any, pattern: str) -> list[str]:
    """Return the matching keys, in a cluster those of all nodes."""
    everywhere = {"target_nodes": "primaries"} if hasattr(redis, "nodes_manager") else {}
    return [key.decode() for key in redis.keys(pattern, **everywhere)]


def finish_all(queue: FairQueue, now: float = NOW) -> list[str]:
    """Run what can be run until nothing is left, as workers do; the users in the order of their starts."""
    order: list[str] = []
    while True:
        queue.carry_messages(now=now)
        leases = queue.pop_batch(10, "w", now=now)
        if not leases:
            return order
        order += [lease.user_id for lease in leases]
        queue.settle([Outcome.finish(lease) for lease in leases], now=now)
