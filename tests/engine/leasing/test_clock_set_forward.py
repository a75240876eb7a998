"""The server's clock is set forward while tasks are leased. Here time moves by calls that give it and calls that don't."""

from __future__ import annotations

import time

import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue

LEASE = 30.0
HOUR = 3600.0


def leased(queue: FairQueue, now: float) -> str:
    """A task that was leased at ``now``, the latest moment that the engine knows."""
    task = Task.create("ann", 3, {"n": 1})
    queue.push(task, now=now)
    assert queue.pop("w", lease=LEASE, now=now) is not None
    return task.task_id


def test_a_clock_that_is_set_forward_ends_no_lease(queue: FairQueue) -> None:
    task_id = leased(queue, time.time() - HOUR)
    assert queue.sweep().reaped == 0
    assert queue.get_task(task_id).state is TaskState.STARTED


def test_a_lease_keeps_its_remaining_time_when_the_clock_is_set_forward(queue: FairQueue) -> None:
    task_id = leased(queue, time.time() - HOUR)
    now = queue.sweep().now
    assert queue.sweep(now=now + LEASE - 1).reaped == 0
    assert queue.sweep(now=now + LEASE + 1).reaped == 1
    assert [attempt.kind for attempt in queue.history(task_id)] == ["lease_ended"]


def test_whichever_call_is_first_notices_that_the_clock_was_set_forward(queue: FairQueue) -> None:
    leased(queue, time.time() - HOUR)
    queue.push(Task.create("bob", 3, {}))
    assert queue.sweep().reaped == 0


def test_a_lease_without_renewal_is_lengthened_by_only_one_clock_step(queue: FairQueue) -> None:
    leased(queue, time.time() - 2 * HOUR)
    queue.sweep()
    # Another step, without a renewal between: as if the first call had been an hour ago.
    _move_back(queue, HOUR)
    assert queue.sweep().reaped == 1


def test_a_renewed_lease_is_lengthened_by_another_clock_step(queue: FairQueue) -> None:
    leased(queue, time.time() - 2 * HOUR)
    queue.sweep()
    _move_back(queue, HOUR)
    ((now),) = (queue.client.hget("fq:{default:0}:stats", "clock"),)  # type: ignore[attr-defined]
    queue.heartbeat("w", {}, lease=LEASE, now=int(now) / 1e6 + 1)
    assert queue.sweep().reaped == 0


def test_a_short_time_without_calls_is_no_clock_step(queue: FairQueue) -> None:
    leased(queue, time.time() - LEASE - 20)
    assert queue.sweep().reaped == 1


def _move_back(queue: FairQueue, seconds: float) -> None:
    """Everything that the engine knows of time is so much older now."""
    client, key = queue.client, "fq:{default:0}:"
    us = int(seconds * 1e6)
    client.execute_command("HDEL", f"{key}stats", "revision")
    for field in ("clock", "spared"):
        client.execute_command("HINCRBY", f"{key}stats", field, -us)
    for member, end in client.zrange(f"{key}state:started", 0, -1, withscores=True):  # type: ignore[attr-defined]
        client.execute_command("ZADD", f"{key}state:started", int(end) - us, member)


def worked(queue: FairQueue, now: float, lease: float = LEASE, worker: str = "w") -> str:
    """A task that a worker has leased, and keeps, at ``now``."""
    task = Task.create("ann", 3, {"n": 1})
    queue.push(task, now=now)
    assert queue.pop(worker, lease=lease, now=now) is not None
    assert queue.heartbeat(worker, {}, lease=lease, now=now).renewed == 1
    return task.task_id


@pytest.mark.parametrize("step", [16, 29, 31, 60, 119, 121])
def test_a_clock_step_ends_no_lease_that_a_worker_renews(queue: FairQueue, step: float) -> None:
    task_id = worked(queue, time.time() - step)
    assert queue.sweep().reaped == 0
    assert queue.get_task(task_id).state is TaskState.STARTED
    assert queue.heartbeat("w", {}, lease=LEASE).renewed == 1


@pytest.mark.parametrize("since_heartbeat", [0, 5, 10, 13])
@pytest.mark.parametrize("step", [10, 14, 15, 20, 25, 90])
def test_renewed_leases_survive_a_clock_step_at_any_time(queue: FairQueue, since_heartbeat: float, step: float) -> None:
    """Up to a heartbeat that is 3 seconds late the lease is there when the next one comes."""
    before = time.time() - step
    worked(queue, before - since_heartbeat)
    queue.sweep(now=before)
    queue.sweep()
    next_one = time.time() + max(0.0, 10 - since_heartbeat)
    assert queue.sweep(now=next_one).reaped == 0
    assert queue.heartbeat("w", {}, lease=LEASE, now=next_one).renewed == 1


def test_the_shortest_lease_determines_the_size_of_a_clock_step(queue: FairQueue) -> None:
    before = time.time() - 20
    short = worked(queue, before, lease=6)
    worked(queue, before, lease=600, worker="slow")
    assert queue.sweep().reaped == 0
    assert queue.get_task(short).state is TaskState.STARTED


def test_a_departed_worker_s_lease_counts_for_a_minute(queue: FairQueue) -> None:
    now = time.time() - 20
    queue.heartbeat("one", {}, lease=2, now=now - 61)
    queue.heartbeat("other", {}, lease=60, now=now)
    queue.push(Task.create("ann", 3, {}), now=now)
    assert queue.pop("other", lease=10, now=now) is not None
    assert queue.sweep().reaped == 1, "20 seconds are less than half of a lease of 60"


def test_the_death_of_a_worker_is_not_taken_for_a_clock_step(queue: FairQueue) -> None:
    now = time.time() - 20
    task_id = worked(queue, now - 16)
    queue.sweep(now=now)
    assert queue.sweep().reaped == 1
    assert queue.get_task(task_id).state is TaskState.QUEUED


def test_workers_that_died_at_once_delay_their_tasks_by_a_lease_at_most(queue: FairQueue) -> None:
    """The queue can't distinguish such deaths from a step of the clock."""
    worked(queue, time.time() - 60)
    now = queue.sweep().now
    assert queue.sweep(now=now + LEASE + 1).reaped == 1
