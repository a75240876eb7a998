"""When a node hangs, workers go on with the tasks on the other nodes as if it did not exist."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import Six
from tests.cluster.test_failover import users_of
from tests.worker.conftest import WorkerProcess, eventually

RunWorker = Callable[..., AbstractContextManager[WorkerProcess]]

VICTIM = 3
LEASE = 9
LONG = 14.0
"""Seconds: longer than a lease."""
WINDOW = 2.0
HASTE = {
    "FAIRQUE_WORKER__LEASE_SECONDS": str(LEASE),
    "FAIRQUE_WORKER__POLL_INTERVAL": "1",
    "FAIRQUE_REDIS__SOCKET_TIMEOUT": "3",
}


@contextmanager
def hanging(six: Six, *ports: int) -> Iterator[None]:
    for port in ports:
        os.kill(six.nodes[port].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for port in ports:
            os.kill(six.nodes[port].pid, signal.SIGCONT)


def call(user: str, name: str, *args: object, **options: object) -> Task:
    return Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, **options)  # type: ignore[arg-type]


def is_finished(queue: FairQueue, task_id: str) -> bool:
    return queue.get_task(task_id).state.value == "finished"


@pytest.mark.slow
def test_workers_serve_living_shards_as_before(six: Six, run_worker: RunWorker) -> None:
    victim = six.primary_of(VICTIM)
    (replica,) = six.replicas_of(victim)
    here = [user for port in six.nodes if port not in (victim, replica) for user in users_of(six, port, 6)]
    there = users_of(six, victim)
    url = six.url(victim) if six.url(victim) != f"redis://127.0.0.1:{replica}" else six.url(replica)
    config = RedisConfig(url=url, cluster=True, socket_timeout=1)
    with run_worker(url, "--concurrency", "2", **HASTE) as worker, config.create_redis_client() as client:
        queue = FairQueue(client, config=QueueConfig(shards=SHARDS, request_timeout=2))
        worker.wait_ready()
        for user in (*here, *there):  # all are at work, and the news of their work are carried
            queue.push(call(user, "noop"))
        eventually(lambda: queue.get_stats(0).states["finished"] == len(here) + len(there))

        def served() -> int:
            """Tasks of the living shards that are done in `WINDOW` seconds, while there is enough to do."""
            before = queue.get_stats(0).states["finished"]
            time.sleep(WINDOW)
            return queue.get_stats(0).states["finished"] - before

        # Two slots need a minute and a half for these tasks, however fast the machine is.
        queue.push_batch([call(user, "nap_local", 0.005) for _ in range(6000) for user in here[::2]])
        idle = here[1::2]
        whole = served()
        chain = [call(idle[0], "noop")]
        for user in (*idle[3:5], idle[0]):
            chain.append(call(user, "noop", depends_on=[chain[-1].task_id]))
        with hanging(six, replica, victim):
            eventually(lambda: bool(queue.get_stats(0).missing_shards))
            partly = max(served() for _ in range(2))
            print(f"tasks in {WINDOW:g} s: {whole} with all nodes, {partly} without one")  # noqa: T201
            assert partly > 0.2 * whole, "a worker that waits for the node at each round is much slower"
            began = time.monotonic()
            nap = queue.push(call(idle[1], "nap_local", LONG)).task_id
            later = queue.push(call(idle[2], "noop", execute_after=1.0)).task_id
            queue.push_graph(chain, "run")
            for task_id in (later, chain[-1].task_id, nap):
                eventually(partial(is_finished, queue, task_id), 40)
            assert time.monotonic() - began > LEASE
            assert queue.history(nap) == []
            assert worker.health()["reasons"] == []
        assert "its leases could not be renewed" not in worker.log
        lines = Counter(re.findall(r"(queue default/\d+): .* trying again until it works", worker.log))
        assert set(lines.values()) <= {1, 2}, "once by the supervisor, once by the process that runs tasks"
        eventually(lambda: not queue.get_stats(0).missing_shards, 20)
        six.wait_whole()
        back = queue.push(call(there[0], "noop")).task_id
        eventually(partial(is_finished, queue, back), 20)
        assert worker.stop() == 0
