"""A primary of the cluster that fails or is replaced while producers and workers are busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from django_fairque.conf import FairQueueConfig, QueueConfig, RedisConfig
from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.six_nodes import Six
from tests.worker.conftest import WorkerProcess, eventually
from tests.worker.test_sentinel import Producer

from .conftest import SHARDS

RunWorker = Callable[..., AbstractContextManager[WorkerProcess]]

LONGEST = 20.0
"""Seconds without a push to the shards of the primary that is gone."""
SOON = 2.0
VICTIM = 3
"""The shard whose primary suffers."""
LEASES = {"FAIRQUE_WORKER__LEASE_SECONDS": "6"}


def users_of(six: Six, port: int, count: int = 4) -> list[str]:
    """Users whose shards lie on the node at this port."""
    there = {shard for shard in range(SHARDS) if six.primary_of(shard) == port}
    return [name for name in map("user-{}".format, range(1000)) if compute_bucket(name) % SHARDS in there][:count]


@contextmanager
def safe_queue(url: str) -> Iterator[FairQueue]:
    config = FairQueueConfig(
        redis=RedisConfig(url=url, cluster=True),
        queue=QueueConfig(replicas_to_confirm=1, request_timeout=30, shards=SHARDS),
    )
    with config.create_redis_client() as client:
        yield FairQueue(client, "default", config.queue)


def fail_over(six: Six, port: int) -> None:
    (replica,) = six.replicas_of(port)
    with six.client(replica) as client:
        client.execute_command("CLUSTER", "FAILOVER")


def kill(six: Six, port: int) -> None:
    six.nodes[port].kill()


def is_done(queue: FairQueue) -> bool:
    stats = queue.get_stats(0)
    waiting = any(stats.states[state] for state in ("queued", "started", "scheduled", "deferred"))
    return not (waiting or stats.missing_shards)


@pytest.mark.slow
@pytest.mark.parametrize("event", [pytest.param(fail_over, id="failover"), pytest.param(kill, id="kill")])
def test_a_failover_loses_no_accepted_task(six: Six, run_worker: RunWorker, event: Callable[[Six, int], None]) -> None:
    victim = six.primary_of(VICTIM)
    there = users_of(six, victim)
    elsewhere = [user for port in six.nodes if port != victim for user in users_of(six, port)]
    with run_worker(six.url(victim), **LEASES) as worker, safe_queue(six.url(victim)) as queue:
        producers = [Producer(queue, there), Producer(queue, elsewhere)]
        worker.wait_ready()
        try:
            for producer in producers:
                producer.start()
            eventually(lambda: all(len(producer.acknowledged) > 50 for producer in producers))
            event(six, victim)
            eventually(lambda: six.primary_of(VICTIM) != victim, 30)
            six.nodes[victim].start()  # the node becomes a replica; without one no write is confirmed
            before = len(producers[0].acknowledged)
            eventually(lambda: len(producers[0].acknowledged) > before + 50 or not producers[0].is_alive(), 40)
        finally:
            for producer in producers:
                producer.stop()
        eventually(partial(is_done, queue), 60)
        ids = [task_id for producer in producers for task_id in producer.acknowledged]
        assert {queue.get_task(task_id).state.value for task_id in ids} == {"finished"}
        assert queue.check_invariants() == []
        assert producers[0].longest_pause < LONGEST
        assert producers[1].longest_pause < SOON + 1
        pauses = [round(producer.longest_pause, 1) for producer in producers]
        print(f"{len(ids)} acknowledged, none lost; longest pause there and elsewhere {pauses} s")  # noqa: T201
        assert worker.stop() == 0


@pytest.mark.slow
def test_other_shards_are_served_while_one_primary_is_down(six: Six, run_worker: RunWorker) -> None:
    victim = six.primary_of(VICTIM)
    (replica,) = six.replicas_of(victim)
    alive = [port for port in six.nodes if port not in (victim, replica) and six.replicas_of(port)]
    users = [user for port in alive for user in users_of(six, port, 6)]
    url = f"redis://127.0.0.1:{alive[0]}"
    with run_worker(url, **LEASES) as worker, safe_queue(url) as queue:
        worker.wait_ready()
        for user in (*users, *users_of(six, victim)):  # all processes are at work
            queue.push(Task.create(user, 3, {"args": [], "kwargs": {}}, name="noop"))
        eventually(partial(is_done, queue))
        six.nodes[replica].kill()
        six.nodes[victim].kill()
        waits = []
        for _ in range(3):
            for user in users:
                began = time.monotonic()
                task_id = queue.push(Task.create(user, 3, {"args": [], "kwargs": {}}, name="noop")).task_id
                eventually(lambda task_id=task_id: queue.get_task(task_id).state.value == "finished", 10)  # type: ignore[misc]
                waits.append(time.monotonic() - began)
        print(f"longest wait on a healthy shard {max(waits):.2f} s")  # noqa: T201
        assert max(waits) < SOON
        six.nodes[victim].start()
        six.nodes[replica].start()
        eventually(partial(is_done, queue))
        assert worker.stop() == 0
        assert queue.check_invariants() == []
