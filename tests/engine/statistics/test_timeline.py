"""Recent activity in spans, the users that wait longest, and the cancellation of all waiting tasks."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from tests.counting import counted
from tests.engine.conftest import NOW, push_many, task


def test_spans_of_the_timeline_begin_at_round_times_and_sum_their_minutes(queue: FairQueue) -> None:
    now = time.time() // 900 * 900 - 3600  # an hour before the span that is going on
    queue.push_batch([task("a", 5), task("a", 5), task("b")], now=now)
    leases = queue.pop_batch(2, "w", lease=3600, now=now + 4)
    queue.finish(leases[0], took=0.5, now=now + 61)
    queue.fail(leases[1], "no", retry=False, took=0.5, now=now + 900)
    activity = queue.get_activity(1440, 15)
    assert len(activity.spans) == 96
    assert all(span.begin % 900 == 0 for span in activity.spans)
    assert [span.seconds for span in activity.spans[:-1]] == [900] * 95
    assert 1 <= activity.spans[-1].seconds <= 900
    (first, second) = (span for span in activity.spans if span.pushed or span.failed)
    assert (first.begin, second.begin) == (now, now + 900)
    assert (first.pushed, first.finished, first.failed, first.dead) == (3, 1, 0, 0)
    assert (second.pushed, second.finished, second.failed, second.dead) == (0, 0, 1, 1)
    assert first.wait.p50 == pytest.approx(4, rel=0.1)
    assert second.run.p95 == pytest.approx(0.5, rel=0.1)
    assert activity.wait.count == activity.run.count == 2
    assert set(activity.wait_by_priority) == {"NORMAL", "VERY_HIGH"}


def test_each_minute_of_the_timeline_costs_one_read(queue: FairQueue, redis: Redis) -> None:
    queue.push(task())
    assert counted(redis, lambda: queue.get_activity(1440, 15))["hgetall"]["calls"] == 1440
    assert counted(redis, queue.get_activity)["hgetall"]["calls"] == 60
    assert len(queue.get_activity().spans) == 60


def test_the_longest_waits_are_listed_first(queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    assert queue.longest_waits() == []
    queue.push(task("older", 5, sla=1, task_id="o"), now=now - 100)
    queue.push(task("old", 5, sla=1), now=now - 90)
    queue.push(task("young", 5), now=now - 10)
    queue.push_batch([task("later", execute_after=now + 500) for _ in range(20)], now=now - 9)
    queue.sweep(now=now - 5)  # the promises are broken: they need no more looking at
    waits = queue.longest_waits()
    assert [wait.user_id for wait in waits] == ["older", "old", "young"]
    assert waits[0].task_id == "o"
    assert waits[0].since == pytest.approx(now - 100, abs=0.001)
    assert [wait.user_id for wait in queue.longest_waits(1)] == ["older"]
    queue.push_batch([task("crowd") for _ in range(1000)], now=now)
    assert counted(redis, lambda: queue.longest_waits(20))["hmget"]["calls"] <= 40


def test_the_users_with_most_waiting_tasks_come_first(queue: FairQueue, redis: Redis) -> None:
    assert queue.busiest_users() == []
    queue.push_batch([task(f"u{number}") for number in range(500)], now=NOW)
    queue.push_batch([task("loud") for _ in range(500)], now=NOW)
    queue.push_batch([task("early", execute_after=NOW + 600) for _ in range(100)], now=NOW)
    queue.push_batch(
        [task("patient", depends_on=["first"]) for _ in range(90)] + [task("u1", task_id="first")], now=NOW
    )
    assert set(queue.busiest_users()[:3]) == {"loud", "early", "patient"}
    calls = counted(redis, lambda: queue.busiest_users(20))
    assert calls["hmget"]["calls"] + calls["getrange"]["calls"] <= 2 * 60
    with pytest.raises(ValueError, match="limit must be a whole number from 1 to 1000, got 0"):
        queue.busiest_users(0)


def test_a_purge_cancels_waiting_tasks_in_slices(queue: FairQueue) -> None:
    push_many(queue, "a", 700)
    push_many(queue, "b", 30, execute_after=NOW + 600)
    queue.push_graph([task("c", task_id="c1"), task("d", task_id="c2", depends_on=["c1"])], now=NOW)
    (running,) = queue.pop_batch(1, "w", now=NOW)
    assert queue.purge(20, now=NOW) == 20
    total = 20
    while done := queue.purge(500, now=NOW):
        assert done <= 500
        total += done
    assert total == 731
    states = queue.get_stats(0).states
    assert {state: count for state, count in states.items() if count} == {"started": 1, "canceled": 731}
    queue.finish(running, now=NOW)


def test_a_purge_of_a_user_cancels_all_its_waiting_tasks_in_slices(queue: FairQueue) -> None:
    for user in ("a", "b"):
        push_many(queue, user, 600)
        push_many(queue, user, 3, priority=6)
        push_many(queue, user, 700, execute_after=NOW + 600)
        queue.push_graph([task(user, task_id=user), *(task(user, depends_on=[user]) for _ in range(30))], now=NOW)
    queue.pop_batch(1, "w", ["a"], now=NOW)
    a = queue.user("a")
    assert [a.purge(limit, now=NOW) for limit in (1, 20, 1000)] == [1, 20, 1000]
    assert a.purge(now=NOW) == 1333 - 1021
    assert a.purge(7, now=NOW) == 0
    sizes = queue.get_queue_sizes("a")
    assert (sizes.total, sizes.running) == (1, 1)
    assert queue.get_queue_sizes("b").total == 1334


def test_a_purge_of_a_user_reads_the_tasks_of_others_only_while_necessary(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 3)
    push_many(queue, "b", 600, execute_after=NOW + 600)
    queue.push_graph([task("b", task_id="first"), *(task("b", depends_on=["first"]) for _ in range(600))], now=NOW)
    for wanted in (0, 500):
        calls = counted(redis, lambda: queue.user("a").purge(now=NOW))
        assert wanted <= calls.get("hmget", {"calls": 0})["calls"] <= wanted + 20
        assert calls.get("getrange", {"calls": 0})["calls"] <= wanted + 20
        assert queue.get_queue_sizes("a").total == 0
        push_many(queue, "a", 1, execute_after=NOW + 5)
    assert queue.user("a").purge(now=NOW) == 1


def test_a_purge_of_a_user_finds_tasks_that_move_while_it_reads(queue: FairQueue) -> None:
    """Other users' tasks that depend on a canceled task leave the list, which moves the tasks behind them."""
    mine = [task("a", task_id=f"m{n:03}", depends_on=["first"]) for n in range(40)]
    dependents = [task("b", task_id=f"b{n:03}", depends_on=["m000"]) for n in range(100)]
    others = [task("b", task_id=f"c{n:03}", depends_on=["first"]) for n in range(395)]
    queue.push_graph([task("b", task_id="first"), *mine, *dependents, *others], now=NOW)
    assert queue.user("a").purge(now=NOW) == 40
    assert queue.get_queue_sizes("a").total == 0
