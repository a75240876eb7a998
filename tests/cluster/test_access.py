"""The rules that `fairque_acl` prints for a cluster are enough on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.engine.model.errors import NotPermittedError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.acl import rules
from tests.engine.conftest import task
from tests.servers import Server

from .conftest import SHARDS


@pytest.fixture
def queue_as(redis: Any, nodes: list[tuple[int, Server]], url: str) -> Iterator[Callable[[str], FairQueue]]:
    """The queue as somebody of a role uses it; the functions are there."""
    opened = []

    def queue_as(role: str) -> FairQueue:
        for _, server in nodes:
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", role, "on", ">pass", *rules(role, cluster=True))
        config = RedisConfig(url=url, cluster=True, username=role, password="pass")  # type: ignore[arg-type]
        opened.append(config.create_redis_client())
        return FairQueue(opened[-1], config=QueueConfig(shards=SHARDS))

    redis.function_load(scripts.functions(), replace=True)
    yield queue_as
    for client in opened:
        client.close()
    for _, server in nodes:
        with server.client() as client:
            client.execute_command("ACL", "DELUSER", "producer", "worker", "viewer")


def test_producers_push_workers_work_and_viewers_read(queue_as: Callable[[str], FairQueue]) -> None:
    producer, worker, viewer = (queue_as(role) for role in ("producer", "worker", "viewer"))
    producer.push_batch([task(f"user-{number}") for number in range(40)])
    leases = worker.pop_batch(100, "w")
    for lease in leases:
        worker.finish(lease)
    worker.sweep()
    assert worker.check_invariants() == []
    assert viewer.get_stats().states["finished"] == len(leases) == 40
    with pytest.raises(NotPermittedError):
        producer.pop_batch(1, "w")
    with pytest.raises(NotPermittedError):
        viewer.pause()
