"""Failures that other queues had with attempts, ids and time. Numbers are those of failures.md."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import ConfigurationError, TaskNotFoundError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker.common.options import new_worker_id
from tests.conftest import MakeServer
from tests.engine.conftest import NOW, pop, push_many, task


def test_a_task_that_is_due_tomorrow_is_leased_once_with_short_leases(queue: FairQueue) -> None:
    """19, 21, 22: delayed tasks lay in workers' memory, unacknowledged, and were handed to every worker."""
    (task_id,) = push_many(queue, "u", 1, execute_after=NOW + 86_400)
    for hour in range(24):
        queue.sweep(now=NOW + 3600 * hour)
        assert queue.pop_batch(10, f"w{hour}", lease=30, now=NOW + 3600 * hour) == []
    leases = [lease for worker in "abc" for lease in queue.pop_batch(10, worker, now=NOW + 86_401)]
    assert [lease.task_id for lease in leases] == [task_id]


def test_canceling_an_unknown_id_does_not_cancel_a_later_task_with_that_id(queue: FairQueue) -> None:
    """62: a cancellation without a task waited for the next one of that id."""
    with pytest.raises(TaskNotFoundError):
        queue.cancel("invoice-7", now=NOW)
    queue.push(task(task_id="invoice-7"), now=NOW)
    lease = pop(queue)
    assert queue.heartbeat("w", {}, now=NOW + 1).revoked == []
    queue.finish(lease, now=NOW + 2)


def test_an_id_is_free_after_its_task_although_a_result_is_kept(queue: FairQueue) -> None:
    """63: no new task of an id while the old one's result was kept."""
    for number in range(2):
        assert queue.push(task(task_id="nightly"), now=NOW + number).status == "accepted"
        queue.finish(pop(queue, NOW + number), number, now=NOW + number)
        assert queue.get_task("nightly").result == number


def test_a_unique_task_whose_worker_died_runs_again_and_frees_its_key(queue: FairQueue) -> None:
    """72: a unique task stayed with a worker that was gone, and no other of its key was accepted any more."""
    first = queue.push(task(unique_key="k", unique_for=100), now=NOW)
    assert queue.pop("w", lease=10, now=NOW) is not None
    assert queue.sweep(now=NOW + 10).reaped == 1
    assert queue.push(task(unique_key="k", unique_for=100), now=NOW + 11).task_id == first.task_id
    lease = pop(queue, NOW + 11, worker="another")
    assert lease.task_id == first.task_id
    queue.finish(lease, now=NOW + 12)
    assert queue.push(task(unique_key="k", unique_for=100), now=NOW + 100).accepted


def test_lists_continue_while_tasks_are_removed(queue: FairQueue) -> None:
    """64: one record that expired between two reads made the whole listing fail."""
    ids = push_many(queue, "u", 20)
    for lease in queue.pop_batch(20, "w", now=NOW):
        queue.finish(lease, now=NOW)
    first = queue.tasks("finished", limit=5)
    queue.sweep(now=NOW + 90_000)
    rest = queue.tasks("finished", limit=20, cursor=first.cursor)
    assert {task.task_id for task in (*first.items, *rest.items)} <= set(ids)
    assert queue.tasks("finished").items == []


def test_a_requeued_task_has_its_full_number_of_deliveries(queue: FairQueue) -> None:
    """74: a retried task failed at once, because the count of its crashes was kept."""
    (task_id,) = push_many(queue, "u", 1)

    def crash_until_dead(now: float) -> int:
        for number in range(1, 20):
            lease = queue.pop("w", now=now)
            if lease is None:
                return number - 1
            assert lease.delivery == number
            queue.release_worker("w", [lease.token], now=now)
            now += 10  # there is a pause from the second on
            queue.sweep(now=now)
        raise AssertionError("it is never given up")

    deaths = crash_until_dead(NOW)
    assert queue.get_task(task_id).state is TaskState.FAILED
    queue.dlq.requeue(queue.dlq.list().items[0].entry_id, now=NOW + 101)
    assert crash_until_dead(NOW + 102) == deaths


def test_any_number_of_deployments_uses_up_no_attempt(queue: FairQueue) -> None:
    """104: each restart of a worker burnt an attempt, and the last one killed the task."""
    push_many(queue, "u", 1, max_retries=1)
    for _ in range(50):
        lease = pop(queue)
        assert (lease.delivery, lease.retry_count) == (1, 0)
        queue.release_worker("w", now=NOW)
    assert queue.fail(pop(queue), "at last", now=NOW) is TaskState.SCHEDULED


@pytest.mark.parametrize("name", ["300000000", "1e5", "9007199254740993", "0x10", "nan", "-0", "00"])
def test_a_task_name_that_looks_like_a_number_stays_text(queue: FairQueue, name: str) -> None:
    """106, 108: scripts wrote 300000000 as 3e+8, and half of a task's keys had another name."""
    payload: Any = {"n": [300_000_000, 9_007_199_254_740_993, 2**63, 0.1, 1e22], "empty": [[], {}]}
    queue.push(task(name, task_id=name, payload=payload), now=NOW)
    queue.push(task(name, depends_on=[name]), now=NOW)
    lease = pop(queue, users=[name])
    assert (lease.task_id, lease.user_id, lease.payload) == (name, name, payload)
    queue.finish(lease, payload, now=NOW)
    queue.sweep(now=NOW)
    assert queue.get_task(name).result == payload
    assert queue.pop("w", [name], now=NOW) is not None


def test_workers_with_one_name_get_different_ids() -> None:
    """71: a worker that was restarted under its old name kept its predecessor's tasks from being taken back."""
    assert len({new_worker_id("mail") for _ in range(1000)}) == 1000


def test_a_delayed_task_survives_a_kill_of_its_server(make_server: MakeServer) -> None:
    """66, 1: after a restart delayed tasks came hours late, or not at all."""
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with server.client() as client:
        queue = FairQueue(client)
        (task_id,) = push_many(queue, "u", 1, execute_after=NOW + 60)
        server.kill()
        server.start()
        assert queue.pop("w", now=NOW + 59) is None
        assert pop(queue, NOW + 60).task_id == task_id
        assert queue.check_invariants() == []


def test_a_leased_task_is_taken_back_after_its_server_was_killed(make_server: MakeServer) -> None:
    """3, 4, 5, 12, 55: popped and not yet noted anywhere when something died; here both are one write."""
    server = make_server("--appendonly", "yes", "--appendfsync", "always")
    with server.client() as client:
        queue = FairQueue(client)
        ids = push_many(queue, "u", 5)
        taken = queue.pop_batch(3, "dead", lease=30, now=NOW)
        server.kill()
        server.start()
        assert queue.check_invariants() == []
        assert len(queue.pop_batch(9, "w", lease=3600, now=NOW)) == 2
        queue.sweep(now=NOW + 31)
        again = queue.pop_batch(9, "w", now=NOW + 31)
        assert {lease.task_id for lease in again} == {lease.task_id for lease in taken}
        assert {lease.delivery for lease in again} == {2}
        assert len(ids) == 5


def test_an_empty_queue_leaves_no_keys(queue: FairQueue, redis: Redis) -> None:
    """111, 113: heartbeats, buffers and records of ended workers and tasks stayed on the server."""
    push_many(queue, "u", 300)
    for number in range(3):
        for lease in queue.pop_batch(100, f"w{number}", now=NOW):
            queue.finish(lease, "x" * 100, now=NOW)
        queue.heartbeat(f"w{number}", {"host": "h"}, ttl=60, now=NOW)
    for day in range(1, 40):
        queue.sweep(now=NOW + 86_400 * day)
    left = [key.decode() for key in redis.scan_iter(count=1000)]
    assert not [key for key in left if ":task:" in key or ":payload:" in key or ":history:" in key]
    assert queue.workers() == []


def test_a_result_is_kept_for_a_minute_at_least() -> None:
    """65: keeping no result at all was an invalid time to live, and killed the worker."""
    with pytest.raises(ConfigurationError, match="result_ttl: expected a number of seconds from 60"):
        QueueConfig.model_validate({"result_ttl": 0})
