"""Workers on three primaries: one queue to them, whatever lies where."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import AsyncWorker
from django_fairque import task as task_of
from django_fairque.conf import RedisConfig, aclose_queues
from django_fairque.conf.redis import aclose_client
from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks import registry
from tests.worker.conftest import WorkerProcess, eventually, recorded

from .conftest import SHARDS

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it

RunWorker = Callable[..., AbstractContextManager[WorkerProcess]]

CONFIG = QueueConfig(retry_base_seconds=0.05, retry_jitter=0, shards=SHARDS)


@pytest.fixture
def queue(redis: Any) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=CONFIG)
    yield made
    assert made.check_invariants() == []


def users_of(shard: int, count: int) -> list[str]:
    return [name for name in map("user-{}".format, range(20_000)) if compute_bucket(name) % SHARDS == shard][:count]


def call(user: str, name: str, *args: object, depends_on: Sequence[str] = ()) -> Task:
    return Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, depends_on=depends_on)


def is_done(queue: FairQueue) -> bool:
    states = queue.get_stats(0).states
    return not any(states[state] for state in ("queued", "started", "scheduled", "deferred"))


def test_a_burst_worker_runs_all_tasks_of_a_cluster(run_worker: RunWorker, queue: FairQueue, url: str) -> None:
    queue.push_batch([call(f"user-{number % 60}", "noop") for number in range(600)])
    chain: list[Task] = []
    for shard in (*range(SHARDS), 0):
        chain.append(
            call(users_of(shard, 1)[0], "add", 1, 2, depends_on=[task.task_id for task in chain[-1:]]),
        )
    queue.push_graph(chain, "run")
    with run_worker(url, "--burst", "--processes", "2") as worker:
        assert worker.wait(60) == 0
    assert queue.get_stats().states[TaskState.FINISHED.value] == 600 + len(chain)
    assert queue.run("run").state == "finished"


@pytest.mark.slow
def test_ten_users_on_one_shard_and_one_on_another_get_equal_service(
    run_worker: RunWorker, queue: FairQueue, redis: Any, url: str
) -> None:
    users = [*users_of(0, 10), *(user for shard in range(1, SHARDS) for user in users_of(shard, 1))]
    tasks = [call(user, "count_me", number) for number in range(250) for user in users]
    owner = {task.task_id: task.user_id for task in tasks}
    queue.push_batch(tasks)
    with run_worker(url, "--burst", "--concurrency", "2", TEST_FAIR_BY="tasks") as worker:
        assert worker.wait(60) == 0
    half = Counter(owner[task_id] for task_id, _ in recorded(redis, "tests:started")[: len(tasks) // 2])
    shares = [half[user] for user in users]
    index = sum(shares) ** 2 / (len(users) * sum(share * share for share in shares))
    print(f"Jain's index {index:.4f}: {shares}")  # noqa: T201
    assert index >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("of_it", ["a child", "the supervisor"])
def test_a_killed_process_loses_no_task(
    run_worker: RunWorker, queue: FairQueue, redis: Any, url: str, of_it: str
) -> None:
    users = [users_of(shard, 1)[0] for shard in range(SHARDS)]
    ids = [queue.push(call(user, "nap", 0.2)).task_id for user in users for _ in range(3)]
    environment = {"FAIRQUE_WORKER__LEASE_SECONDS": "3"}
    with run_worker(url, "--concurrency", "6", **environment) as worker:
        worker.wait_ready()
        eventually(lambda: len(recorded(redis, "tests:started")) >= 6)
        if of_it == "a child":
            worker.children()[0].send_signal(signal.SIGKILL)
            eventually(partial(is_done, queue), 60)
            assert worker.stop() == 0
        else:
            worker.send(signal.SIGKILL)
            worker.wait()
            with run_worker(url, "--concurrency", "6", **environment) as other:
                eventually(partial(is_done, queue), 60)
                assert other.stop() == 0
    assert {queue.get_task(task_id).state for task_id in ids} == {TaskState.FINISHED}
    assert {task_id for task_id, _ in recorded(redis, "tests:ended")} == set(ids)


async def test_coroutines_push_fetch_settle_and_read_on_a_cluster(queue: FairQueue, url: str) -> None:
    """Push, a graph over shards, fetch, settle and read, on the same cluster."""
    client = RedisConfig(url=url, cluster=True).create_async_redis_client()
    same = AsyncFairQueue(client, config=CONFIG)
    await same.push_batch([call(f"user-{number}", "noop") for number in range(40)])
    first, second = (call(users_of(shard, 1)[0], "noop") for shard in (1, 2))
    third = call(users_of(3, 1)[0], "noop", depends_on=[first.task_id, second.task_id])
    await same.push_graph([first, second, third], "run")
    done = 0
    for _ in range(10):
        leases = await same.pop_batch(20, "w")
        for lease in leases:
            await same.finish(lease)
        done += len(leases)
        await same.carry_messages()
    assert done == 43
    assert (await same.run("run")).state == "finished"
    assert (await same.get_stats()).states["finished"] == 43
    assert await same.check_invariants() == []
    await aclose_client(client)


@pytest.mark.django_db(transaction=True)
async def test_an_async_worker_serves_a_cluster(
    queue: FairQueue, url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    redis = {"URL": url, "CLUSTER": True}
    settings.FAIRQUE = {"REDIS": redis, "QUEUE": {"SHARDS": SHARDS, "RETRY_BASE_SECONDS": 0.05}}

    @task_of(name="awaited")
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        return number

    for number in range(40):
        await awaited.using(user_id=f"user-{number}").aenqueue(number)
    await AsyncWorker(burst=True, concurrency=4).run()
    await aclose_queues()
    assert queue.get_stats().states["finished"] == 40
