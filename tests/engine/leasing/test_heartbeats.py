"""Heartbeats: a worker reports what it holds, and the reply has cancellations and commands."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.leasing.lease_ops import WorkerCommand
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, push_many, task


def test_a_heartbeat_renews_leases_and_returns_cancellations(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 2)
    leases = queue.pop_batch(2, "w1", lease=10, now=NOW)
    assert queue.cancel(ids[0], now=NOW)
    beat = queue.heartbeat("w1", {"host": "h", "pid": "7"}, lease=100, now=NOW + 5)
    assert (beat.renewed, beat.revoked) == (1, [leases[0].key])
    assert queue.heartbeat("w1", {}, lease=100, now=NOW + 5).revoked == []
    assert queue.sweep(now=NOW + 50).reaped == 0
    (record,) = queue.workers()
    assert (record.worker, record.leases, record.info["host"], record.seen_at) == ("w1", 1, "h", NOW + 5)
    queue.sweep(now=NOW + 66)
    assert queue.workers() == []


def test_workers_are_sorted_by_id_with_numbers_in_numeric_order(queue: FairQueue) -> None:
    names = ["2", "10", "a", "a" + "9" * 200, "a-01", "a-1", "a-2.1", "a-2.10", "a-10", "b\u0661", "b\u0662"]
    for name in reversed(names):
        queue.heartbeat(name, {}, now=NOW)
    assert [record.worker for record in queue.workers()] == names


def test_a_cancellation_ends_one_lease_and_not_the_next_task_with_the_same_id(queue: FairQueue) -> None:
    queue.push(task("a", task_id="a:b"), now=NOW)
    (old,) = queue.pop_batch(1, "w", now=NOW)
    queue.cancel("a:b", now=NOW)
    queue.push(task("a", task_id="a:b"), now=NOW)
    (new,) = queue.pop_batch(1, "w", now=NOW)
    assert (old.key.task_id, new.key.task_id) == ("a:b", "a:b")
    assert queue.heartbeat("w", {}, now=NOW).revoked == [old.key]
    queue.cancel("a:b", now=NOW)
    assert queue.heartbeat("w", {}, now=NOW).revoked == [new.key]


@pytest.mark.parametrize("token", ["", "abc", "1.5", "inf", "-3"])
def test_a_damaged_token_does_not_keep_a_worker_from_its_heartbeat(queue: FairQueue, redis: Redis, token: str) -> None:
    ids = push_many(queue, "a", 2)
    leases = queue.pop_batch(2, "w", now=NOW)
    redis.hset(f"fq:{{default:0}}:task:{ids[0]}", "token", token)
    for task_id in ids:
        queue.cancel(task_id, now=NOW)
    assert leases[1].key in queue.heartbeat("w", {}, now=NOW).revoked


def test_heartbeats_return_the_last_command_of_the_operator(queue: FairQueue) -> None:
    assert queue.set_worker_command("w1", "drain", now=NOW) is False
    assert queue.heartbeat("w1", {}, now=NOW).command is None
    assert queue.set_worker_command("w1", "drain", now=NOW + 1) is True
    assert queue.heartbeat("w1", {}, now=NOW + 2).command == WorkerCommand("drain", NOW + 1)
    assert queue.heartbeat("w1", {}, now=NOW + 3).command == WorkerCommand("drain", NOW + 1)
    assert queue.workers()[0].command == "drain"
    assert queue.workers()[0].info == {}
    queue.set_worker_command("w1", "stop", now=NOW + 4)
    assert queue.heartbeat("w1", {}, now=NOW + 5).command == WorkerCommand("stop", NOW + 4)
    assert queue.heartbeat("w2", {}, now=NOW + 5).command is None
    queue.release_worker("w1", forget=True, now=NOW + 6)
    assert queue.heartbeat("w1", {}, now=NOW + 7).command is None


@pytest.mark.parametrize(
    ("worker", "command", "words"), [("w1", "hurry", "drain, work, stop"), ("", "drain", "worker")]
)
def test_an_unknown_worker_command_is_refused(queue: FairQueue, worker: str, command: str, words: str) -> None:
    queue.heartbeat("w1", {}, now=NOW)
    with pytest.raises(ValueError, match=words):
        queue.set_worker_command(worker, command)
