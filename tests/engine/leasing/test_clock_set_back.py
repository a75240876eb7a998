"""The server's clock was ahead and is set right. What a call gives as ``now`` is here what the server's clock says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.acl import rules
from tests.counting import commands
from tests.engine.conftest import NOW, pop, task
from tests.engine.server_clock import ServerClock
from tests.servers import Server

LEASE = 30.0
HOUR = 3600.0
AHEAD = NOW + HOUR
P = "fq:{default:0}:"


@pytest.fixture
def queue(redis: Redis) -> Iterator[FairQueue]:
    made = FairQueue(ServerClock(redis), config=QueueConfig(fair_by="tasks", retry_jitter=0))
    yield made
    assert made.check_invariants() == []


def leased(queue: FairQueue, now: float, **options: Any) -> str:
    queue.push(task("ann", **options), now=now)
    lease = pop(queue, now, lease=LEASE)
    return lease.task_id


@pytest.mark.parametrize("back", [61.0, 600.0, HOUR, 24 * HOUR, 4000 * 24 * HOUR])
def test_the_queue_follows_a_corrected_clock_at_once(queue: FairQueue, back: float) -> None:
    queue.push(task(), now=AHEAD)
    assert queue.sweep(now=AHEAD - back).now == AHEAD - back
    assert queue.sweep(now=AHEAD - back + 1).now == AHEAD - back + 1


@pytest.mark.parametrize("back", [0.001, 5.0, 60.0])
def test_the_time_of_the_queue_stands_still_after_a_small_clock_step_back(queue: FairQueue, back: float) -> None:
    queue.push(task(), now=AHEAD)
    assert queue.sweep(now=AHEAD - back).now == AHEAD
    assert queue.sweep(now=AHEAD - back / 2).now == AHEAD
    assert queue.sweep(now=AHEAD + 1).now == AHEAD + 1


def test_several_small_clock_steps_back_count_as_one_large_step(queue: FairQueue) -> None:
    queue.push(task(), now=AHEAD)
    assert queue.sweep(now=AHEAD - 40).now == AHEAD
    assert queue.sweep(now=AHEAD - 80).now == AHEAD - 80


def test_a_lease_keeps_its_remaining_time_when_the_clock_is_set_back(queue: FairQueue) -> None:
    task_id = leased(queue, AHEAD)
    queue.sweep(now=AHEAD + 10)
    queue.sweep(now=NOW)
    assert queue.sweep(now=NOW + LEASE - 11).reaped == 0
    assert queue.get_task(task_id).state is TaskState.STARTED
    assert queue.sweep(now=NOW + LEASE - 9).reaped == 1
    assert [attempt.kind for attempt in queue.history(task_id)] == ["lease_ended"]


def test_a_lease_that_ended_before_the_clock_step_stays_ended(queue: FairQueue) -> None:
    leased(queue, AHEAD)
    queue.push(task("bob"), now=AHEAD + LEASE + 1)
    assert queue.sweep(now=NOW).reaped == 1


@pytest.mark.parametrize("call", ["push", "heartbeat", "alerts", "xcom", "progress", "settle"])
def test_whichever_call_is_first_notices_that_the_clock_was_set_back(queue: FairQueue, call: str) -> None:
    queue.push(task("ann"), now=AHEAD)
    lease = pop(queue, AHEAD, lease=LEASE)
    calls: dict[str, Callable[[], object]] = {
        "push": lambda: queue.push(task("bob"), now=NOW),
        "heartbeat": lambda: queue.heartbeat("another", {}, lease=LEASE, now=NOW),
        "alerts": lambda: queue.take_alerts(now=NOW),
        "xcom": lambda: queue.xcom("n").push("k", 1, now=NOW),
        "progress": lambda: queue.set_progress(lease, 1, 2, now=NOW),
        "settle": lambda: queue.settle([], 1, worker="another", lease=LEASE, now=NOW),
    }
    calls[call]()
    for later in (10, 20, LEASE - 1):  # a gap between calls of half a lease would be taken for a step
        assert queue.sweep(now=NOW + later).reaped == 0
    assert queue.sweep(now=NOW + LEASE + 1).reaped == 1


def test_a_worker_that_continues_to_renew_keeps_its_leases(queue: FairQueue) -> None:
    task_id = leased(queue, AHEAD)
    for at in range(0, 300, 10):
        assert queue.heartbeat("w", {}, lease=LEASE, now=NOW + at).renewed == 1
        assert queue.sweep(now=NOW + at).reaped == 0
    for at in (300, 310):  # a gap between calls of half a lease would be taken for a step
        assert queue.sweep(now=NOW + at).reaped == 0
    assert queue.sweep(now=NOW + 290 + LEASE + 1).reaped == 1
    assert queue.get_task(task_id).state is TaskState.QUEUED


def test_an_alternating_clock_does_not_lengthen_leases(queue: FairQueue) -> None:
    leased(queue, NOW)
    reaped = 0
    for _ in range(3):
        reaped += queue.sweep(now=AHEAD).reaped
        reaped += queue.sweep(now=NOW).reaped
    assert reaped == 1


def test_delayed_tasks_are_due_at_their_absolute_time_after_the_clock_is_set_back(queue: FairQueue) -> None:
    queue.push(task(execute_after=NOW + 100), now=NOW - 10)
    ahead = task(execute_after=AHEAD + 100)
    queue.push(ahead, now=AHEAD - 7200)
    assert queue.sweep(now=NOW - 9).due == 0
    assert queue.sweep(now=NOW + 99).due == 0
    assert queue.sweep(now=NOW + 101).due == 1
    assert queue.get_task(ahead.task_id).execute_after == AHEAD + 100


def test_the_pause_before_a_retry_does_not_grow_when_the_clock_is_set_back(queue: FairQueue) -> None:
    task_id = leased(queue, AHEAD, max_retries=3)
    queue.push(task(execute_after=AHEAD + 30), now=AHEAD)
    queue.release_worker("w", now=AHEAD)
    queue.settle([Outcome.fail(pop(queue, AHEAD, lease=LEASE), "x", delay=20)], now=AHEAD)
    queue.sweep(now=AHEAD + 5)
    assert queue.sweep(now=NOW).due == 0
    assert queue.get_task(task_id).execute_after == pytest.approx(NOW + 15)
    assert queue.sweep(now=NOW + 14).due == 0
    assert queue.sweep(now=NOW + 16).due == 1
    assert queue.sweep(now=AHEAD + 29).due == 0, "a task with a fixed time keeps that time"


def test_the_delay_of_a_task_does_not_grow_when_the_clock_is_set_back(queue: FairQueue) -> None:
    task_id = queue.push(task(delay=60), now=AHEAD).task_id
    queue.sweep(now=AHEAD + 20)
    assert queue.sweep(now=NOW).due == 0
    assert queue.get_task(task_id).execute_after == pytest.approx(NOW + 40)
    assert queue.sweep(now=NOW + 41).due == 1


@pytest.mark.parametrize("crash", ["seen", "reported"])
def test_the_pause_after_a_crash_does_not_grow_when_the_clock_is_set_back(queue: FairQueue, crash: str) -> None:
    task_id = queue.push(task("ann"), now=AHEAD).task_id
    for _ in range(2):
        lease = pop(queue, AHEAD, lease=LEASE)
        if crash == "reported":
            queue.settle([Outcome.crash(lease, "x")], now=AHEAD)
        else:
            queue.release_worker("w", [lease.token], now=AHEAD)
    queue.sweep(now=AHEAD + 0.25)
    assert queue.sweep(now=NOW).due == 0
    assert queue.get_task(task_id).execute_after == pytest.approx(NOW + 0.5 * (1 + 2 / 16) - 0.25)


def test_a_task_that_became_due_too_early_stays_ready_when_the_clock_is_set_back(queue: FairQueue) -> None:
    made = task(execute_after=NOW + 100)
    queue.push(made, now=NOW)
    assert queue.sweep(now=AHEAD).due == 1
    queue.sweep(now=NOW + 1)
    assert queue.get_task(made.task_id).state is TaskState.QUEUED


def test_a_due_task_wakes_an_idle_worker_in_time(queue: FairQueue) -> None:
    leased(queue, AHEAD)
    queue.push(task(execute_after=NOW + 20), now=NOW)
    sweep = queue.sweep(now=NOW + 1)
    assert sweep.look_at == NOW + 20


def test_a_user_without_rate_tokens_waits_no_longer_when_the_clock_is_set_back(queue: FairQueue) -> None:
    queue.user("ann").set_rate("2/60s", burst=2, now=AHEAD)
    queue.push_batch([task("ann") for _ in range(6)], now=AHEAD)
    assert len(queue.pop_batch(6, "w", lease=9 * HOUR, now=AHEAD)) == 2
    queue.sweep(now=AHEAD + 10)
    assert queue.pop("w", lease=9 * HOUR, now=NOW) is None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 19) is None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 21) is not None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 22) is None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 52) is not None


def test_a_user_with_rate_tokens_waits_for_at_most_one_token_when_the_clock_is_set_back(queue: FairQueue) -> None:
    queue.user("ann").set_rate("3/60s", burst=3, now=AHEAD)
    queue.push_batch([task("ann") for _ in range(6)], now=AHEAD)
    assert queue.pop("w", lease=9 * HOUR, now=AHEAD) is not None
    assert queue.pop("w", lease=9 * HOUR, now=NOW) is not None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 21) is not None
    assert queue.pop("w", lease=9 * HOUR, now=NOW + 42) is not None


def test_a_throttled_user_with_a_lost_entry_does_not_wait_for_the_clock_step(queue: FairQueue, redis: Redis) -> None:
    queue.user("ann").set_rate("1/60s", now=AHEAD)
    queue.push_batch([task("ann"), task("ann")], now=AHEAD)
    queue.pop("w", lease=9 * HOUR, now=AHEAD)
    queue.sweep(now=NOW)
    redis.zadd(f"{P}throttled", {"ann": (NOW + HOUR) * 1e6})
    (violation,) = queue.check_invariants()
    assert violation.invariant == "throttled"
    assert all(repair.is_fixed for repair in queue.repair(now=NOW))
    queue.sweep(now=NOW + 61)
    assert queue.pop("w", now=NOW + 61) is not None


def test_the_order_of_users_does_not_change_when_the_clock_is_set_back(queue: FairQueue, redis: Redis) -> None:
    for user, weight in (("ann", 1), ("bob", 2), ("eve", 1)):
        queue.user(user).set_weight(weight, now=AHEAD)
        queue.push_batch([task(user) for _ in range(20)], now=AHEAD)
    queue.pop_batch(9, "w", lease=9 * HOUR, now=AHEAD)

    def places() -> tuple[Any, ...]:
        figures = redis.hmget(f"{P}stats", "vtime", "arrival", "mean", "token", "stamp")
        return redis.zrange(f"{P}ring", 0, -1, withscores=True), figures

    before = places()
    queue.sweep(now=NOW)
    assert places() == before
    leases = queue.pop_batch(40, "w", lease=9 * HOUR, now=NOW + 1)
    starts = [lease.user_id for lease in leases[:24]]
    assert {user: starts.count(user) for user in ("ann", "bob", "eve")} == {"ann": 6, "bob": 12, "eve": 6}


def test_the_order_of_a_user_s_tasks_does_not_change_when_the_clock_is_set_back(queue: FairQueue) -> None:
    made = [task("ann") for _ in range(4)]
    queue.push_batch(made[:2], now=AHEAD)
    queue.push_batch(made[2:], now=NOW)
    assert [lease.task_id for lease in queue.pop_batch(4, "w", now=NOW)] == [task.task_id for task in made]


def test_a_lease_s_run_and_wait_are_never_negative(queue: FairQueue) -> None:
    queue.push(task("ann"), now=AHEAD)
    lease = pop(queue, AHEAD, lease=LEASE)
    queue.push(task("ann"), now=AHEAD)
    (following,) = queue.settle([Outcome.finish(lease)], 1, worker="w", now=NOW).leases
    queue.settle([Outcome.finish(following)], worker="w", now=NOW + 1)
    (stats,) = queue.user_stats(["ann"], now=NOW + 1)
    assert stats.busy_seconds == pytest.approx(1.0)
    assert stats.waited_seconds == 0


def test_the_last_hour_holds_no_hour_of_the_future(queue: FairQueue) -> None:
    begin = NOW - NOW % HOUR
    for at in (begin + 5 * HOUR, begin):
        queue.push(task("ann"), now=at)
        queue.settle([Outcome.finish(pop(queue, at, lease=LEASE), took=10)], now=at)
    (stats,) = queue.user_stats(["ann"], now=begin + 60)
    assert stats.last_hour.busy_seconds == pytest.approx(10)


def test_a_producer_s_push_may_be_the_first_call_after_the_clock_is_set_back(
    queue: FairQueue, redis: Redis, server: Server
) -> None:
    leased(queue, AHEAD)
    retried = leased(queue, AHEAD)
    queue.user("bob").set_rate("1/60s", now=AHEAD)
    queue.push_batch([task("bob"), task("bob")], now=AHEAD)
    queue.pop("w", lease=LEASE, now=AHEAD)
    queue.heartbeat("w", {}, lease=LEASE, now=AHEAD)
    redis.execute_command("ACL", "SETUSER", "p", "reset", "on", ">p", *rules("producer", "scripts"))
    with server.client(username="p", password="p") as client:
        assert FairQueue(ServerClock(client)).push(task(), now=NOW).accepted
    assert queue.sweep(now=NOW + LEASE - 1).reaped == 0
    assert queue.get_task(retried).state is TaskState.STARTED


def test_a_worker_command_after_a_clock_step_replaces_the_former_one(queue: FairQueue) -> None:
    queue.heartbeat("w", {}, lease=LEASE, now=AHEAD)
    commands_sent = []
    for now, kind in ((AHEAD, "drain"), (NOW, "work")):
        queue.set_worker_command("w", kind, now=now)
        command = queue.heartbeat("w", {}, lease=LEASE, now=now).command
        assert command is not None
        commands_sent.append((command.at, command.kind))
    assert sorted(commands_sent) == commands_sent


def test_a_damaged_clock_in_the_future_is_corrected(queue: FairQueue, redis: Redis) -> None:
    task_id = leased(queue, NOW)
    redis.hset(f"{P}stats", mapping={"revision": "", "clock": "1e400"})
    assert queue.sweep(now=NOW + 1).now == NOW + 1
    queue.sweep(now=NOW + 2)
    assert queue.get_task(task_id).state is TaskState.QUEUED


def test_times_given_by_callers_do_not_set_the_clock(redis: Redis) -> None:
    """Tests move time by giving it: nothing they gave is taken for a clock that was wrong."""
    plain = FairQueue(redis)
    plain.push(task(), now=AHEAD)
    assert plain.sweep().now == AHEAD
    assert plain.sweep(now=NOW).now == AHEAD


def test_a_clock_step_costs_additional_commands_only_once(queue: FairQueue, redis: Redis) -> None:
    queue.push_batch([task("ann") for _ in range(9)], now=AHEAD)
    queue.pop("w", lease=LEASE, now=AHEAD)
    counts = [
        commands(redis, lambda at=now: queue.pop("w", lease=LEASE, now=at))  # type: ignore[misc]
        for now in (AHEAD + 1, NOW, NOW + 1)
    ]
    assert counts[0] == counts[2] < counts[1]
