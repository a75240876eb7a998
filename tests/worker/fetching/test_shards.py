"""Workers on a queue of several shards: one queue to them, whatever lies where."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.sharding.sharded import SHARDS, users_of
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis import Redis

    from django_fairque.engine.model.lanes import Lane

ENVIRONMENT = {"TEST_SHARDS": str(SHARDS)}


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    return FairQueue(redis, "default", QueueConfig(retry_base_seconds=0.05, retry_jitter=0, shards=SHARDS))


def is_finished(queue: FairQueue, task_id: str) -> bool:
    return queue.get_task(task_id).state is TaskState.FINISHED


def call(user: str, name: str, *args: object, depends_on: Sequence[str] = (), lane: Lane = "normal") -> Task:
    return Task.create(user, 3, {"args": args, "kwargs": {}}, name=name, depends_on=depends_on, lane=lane)


def test_a_burst_worker_runs_all_tasks_of_four_shards(workers: Workers) -> None:
    workers.queue.push_batch([call(f"user-{number % 30}", "noop") for number in range(300)])
    first = call(users_of(0, 1)[0], "add", 1, 2)
    chain = [first]
    for shard in (1, 2, 3, 0):
        chain.append(call(users_of(shard, 1)[0], "add", 1, 2, depends_on=[chain[-1].task_id]))
    workers.queue.push_graph(chain, "run")
    worker = workers.start("--burst", "--processes", "2", **ENVIRONMENT)
    assert worker.wait() == 0
    assert workers.queue.get_stats().states[TaskState.FINISHED.value] == 305
    assert workers.queue.run("run").state == "finished"


def test_a_dependent_on_another_shard_starts_at_once(workers: Workers) -> None:
    workers.start(**ENVIRONMENT).wait_ready()
    one, two = users_of(0, 1)[0], users_of(1, 1)[0]
    for _ in range(5):
        parent = call(one, "noop")
        child = call(two, "noop", depends_on=[parent.task_id])
        workers.queue.push_graph([parent, child])
        eventually(partial(is_finished, workers.queue, child.task_id))


def test_users_of_a_full_shard_are_served_like_others(workers: Workers) -> None:
    users = [*users_of(0, 10), *users_of(1, 1), *users_of(2, 3)]
    tasks = [call(user, "count_me", number) for number in range(150) for user in users]
    owner = {task.task_id: task.user_id for task in tasks}
    workers.queue.push_batch(tasks)
    workers.start("--burst", "--concurrency", "2", TEST_FAIR_BY="tasks", **ENVIRONMENT).wait(60)
    half = [owner[task_id] for task_id, _ in workers.started()][: len(tasks) // 2]
    shares = [Counter(half)[user] for user in users]
    assert sum(shares) ** 2 / (len(users) * sum(share * share for share in shares)) > 0.95


@pytest.mark.parametrize("lane", ["normal", "urgent"])
def test_a_task_of_a_newcomer_next_to_a_user_of_long_tasks_is_next(workers: Workers, lane: Lane) -> None:
    """Nobody asks that shard for tasks meanwhile: its other user has had more than its share."""
    long, newcomer = users_of(0, 2)
    workers.queue.push_batch([call(long, "nap", 1.0) for _ in range(3)])
    workers.queue.push_batch([call(user, "nap", 0.01) for user in users_of(1, 3) for _ in range(400)])
    workers.start("--concurrency", "1", "--processes", "1", **ENVIRONMENT).wait_ready()
    eventually(lambda: workers.queue.user(long).stats().finished == 1)
    task_id = workers.queue.push(call(newcomer, "nap", 0, lane=lane)).task_id
    before = len(workers.started())
    eventually(partial(is_finished, workers.queue, task_id))
    order = [task_id for task_id, _ in workers.started()]
    # A look each 0.1 s, and what lay in the worker's buffer. Until it is that shard's turn others run 300 tasks, a second each.
    between = order.index(task_id) - before
    assert between < 60
    assert workers.queue.user(long).stats().started < 3


def test_a_killed_process_loses_no_task_on_any_shard(workers: Workers) -> None:
    ids = [workers.queue.push(call(users_of(shard, 1)[0], "nap", 1.0)).task_id for shard in range(SHARDS)]
    worker = workers.start("--concurrency", "4", **ENVIRONMENT).wait_ready()
    workers.wait_started(SHARDS)
    worker.children()[0].send_signal(signal.SIGKILL)
    workers.wait_started(2 * SHARDS)
    assert {task_id for task_id, _ in workers.started()} == set(ids)
    assert {workers.queue.history(task_id)[0].kind for task_id in ids} == {"crashed"}
    eventually(lambda: workers.queue.get_stats().states["finished"] == SHARDS)  # each alone, one after the other
    assert worker.stop() == 0


@pytest.mark.slow
def test_a_worker_obeys_commands_from_any_shard(workers: Workers) -> None:
    worker = workers.start(**ENVIRONMENT).wait_ready()
    (record,) = eventually(workers.queue.workers)
    assert workers.queue.set_worker_command(record.worker, "stop")
    assert worker.wait() == 0


def test_a_worker_with_another_number_of_shards_starts_no_task(workers: Workers) -> None:
    task_id = workers.queue.push(call("ann", "noop")).task_id
    worker = workers.start("--burst", TEST_SHARDS="2")
    assert worker.wait() != 0
    assert "lies on 4 shards and is configured to lie on 2" in worker.log
    assert workers.state(task_id) is TaskState.QUEUED


def test_users_of_a_worker_s_list_come_first_on_any_shard(workers: Workers) -> None:
    mine, *others = (users_of(shard, 1)[0] for shard in (2, 0, 1, 3))
    tasks = [call(user, "count_me", number) for user in others for number in range(40)]
    tasks += [call(mine, "count_me", number) for number in range(30)]
    owner = {task.task_id: task.user_id for task in tasks}
    workers.queue.push_batch(tasks)
    worker = workers.start("--burst", "--concurrency", "2", "--users", mine, "--steal", "*", **ENVIRONMENT)
    assert worker.wait(60) == 0
    started = [owner[task_id] for task_id, _ in workers.started()]
    assert len(started) == 150
    assert Counter(started[:34])[mine] == 30, "two slots, each a task ahead"


def test_a_user_of_a_worker_s_list_who_comes_later_is_served_soon(workers: Workers) -> None:
    mine, *others = (users_of(shard, 1)[0] for shard in (2, 0, 1, 3))
    workers.queue.push_batch([call(user, "nap", 0.02) for user in others for _ in range(200)])
    workers.start("--concurrency", "1", "--users", mine, "--steal", "*", **ENVIRONMENT)
    eventually(lambda: len(workers.ended()) >= 3)
    wanted = workers.queue.push(call(mine, "nap", 0.0)).task_id
    eventually(partial(is_finished, workers.queue, wanted))
    assert len(workers.ended()) < 60, "of 601"


@pytest.mark.parametrize(("lane", "least", "most"), [("urgent", 160, 240), ("bulk", 10, 40)])
def test_tasks_in_another_lane_of_another_shard_get_their_share_of_a_worker(
    workers: Workers, lane: Lane, least: int, most: int
) -> None:
    """Half of the tasks are urgent, or a twentieth bulk, while users of another shard have normal tasks."""
    tasks = [call(user, "count_me", number) for number in range(30) for user in users_of(0, 20)]
    other = [call(user, "count_me", number, lane=lane) for number in range(30) for user in users_of(1, 20)]
    workers.queue.push_batch([*tasks, *other])
    workers.start("--burst", "--concurrency", "2", TEST_FAIR_BY="tasks", **ENVIRONMENT).wait(60)
    ids = {task.task_id for task in other}
    assert least <= sum(task_id in ids for task_id, _ in workers.started()[:400]) <= most
