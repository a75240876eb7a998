"""A turn of a batch task takes all that its user has waiting, as many as fit, and is charged for the time of the call."""

from __future__ import annotations

from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

SIZES = {"index": 50}


def push(queue: FairQueue, user: str, count: int, name: str = "index", priority: int = 3) -> list[str]:
    tasks = [task(user, priority, name=name) for _ in range(count)]
    return [result.task_id for result in queue.push_batch(tasks, now=NOW)]


def fetch(queue: FairQueue, turns: int, now: float = NOW, users: str | list[str] = "*") -> list[Lease]:
    return queue.settle([], turns, worker="w", users=users, batches=SIZES, now=now).leases


def names(leases: list[Lease]) -> Counter[tuple[str, str]]:
    return Counter((lease.user_id, lease.name) for lease in leases)


@pytest.mark.parametrize("users", ["*", ["a", "b"]])
def test_a_turn_takes_as_many_items_as_the_batch_size(queue: FairQueue, users: str | list[str]) -> None:
    ids = push(queue, "a", 70)
    push(queue, "b", 3, "other")
    leases = fetch(queue, 2, users=users)
    assert names(leases) == {("a", "index"): 50, ("b", "other"): 1}
    assert [lease.task_id for lease in leases if lease.user_id == "a"] == ids[:50]
    assert names(fetch(queue, 2, users=users)) == {("a", "index"): 20, ("b", "other"): 1}


def test_a_user_with_batches_gets_its_share_among_twenty_other_users(queue: FairQueue) -> None:
    push(queue, "a", 2000)
    for number in range(20):
        push(queue, f"u{number}", 100, "other")
    batches, others, now = [], 0, NOW
    for _ in range(110):
        now += 0.1
        leases = fetch(queue, 4, now)
        mine = [lease for lease in leases if lease.user_id == "a"]
        if mine:
            batches.append(len(mine))
        others += len(leases) - len(mine)
        # The call takes 0.1 s, as each of the other tasks does.
        took = {"index": 0.1 / max(1, len(mine)), "other": 0.1}
        queue.settle([Outcome.finish(lease, took=took[lease.name]) for lease in leases], now=now)
    turns = len(batches)
    assert set(batches) == {50}
    assert others / 20 == pytest.approx(turns, abs=1.5)  # each has as many turns as the user of the batches


def test_a_turn_without_batch_sizes_is_one_task(queue: FairQueue) -> None:
    push(queue, "a", 10)
    assert len(queue.settle([], 2, worker="w", now=NOW).leases) == 2


def test_tasks_of_other_names_between_a_batch_s_items_keep_their_position(queue: FairQueue) -> None:
    for _ in range(30):
        push(queue, "a", 1)
        push(queue, "a", 1, "other")
    leases = fetch(queue, 1)
    assert names(leases) == {("a", "index"): 30}
    assert queue.get_queue_sizes("a").ready == 30
    assert queue.check_invariants() == []
    assert names(fetch(queue, 60)) == {("a", "other"): 30}


def test_a_batch_does_not_search_a_long_backlog(queue: FairQueue) -> None:
    push(queue, "a", 1)
    push(queue, "a", 2 * SIZES["index"], "other")
    push(queue, "a", 10)
    assert names(fetch(queue, 1)) == {("a", "index"): 1}


def test_critical_tasks_keep_their_order_in_batches(queue: FairQueue) -> None:
    push(queue, "a", 3, priority=6)
    push(queue, "a", 1, "other", priority=6)
    push(queue, "a", 3, priority=6)
    assert names(fetch(queue, 1)) == {("a", "index"): 3}
    assert names(fetch(queue, 1)) == {("a", "other"): 1}
    assert names(fetch(queue, 1)) == {("a", "index"): 3}


def test_caps_and_rates_hold_for_each_item(queue: FairQueue) -> None:
    push(queue, "capped", 20)
    queue.user("capped").set_max_running(7, now=NOW)
    push(queue, "rated", 20)
    queue.user("rated").set_rate("1/s", burst=5, now=NOW)
    push(queue, "member", 20)
    queue.user("member").set_organization("g", now=NOW)
    queue.organization("g").set_max_running(3, now=NOW)
    leases = fetch(queue, 10)
    assert names(leases) == {("capped", "index"): 7, ("rated", "index"): 5, ("member", "index"): 3}
    assert queue.check_invariants() == []
    queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], now=NOW + 1)
    assert queue.check_invariants() == []
    assert names(fetch(queue, 10, NOW + 1)) == {("capped", "index"): 7, ("rated", "index"): 1, ("member", "index"): 3}


def test_one_call_leases_at_most_300_tasks(queue: FairQueue) -> None:
    for number in range(20):
        push(queue, f"u{number}", 50)
    assert len(fetch(queue, 20)) == 300


def test_the_run_time_of_a_batch_counts_once(queue: FairQueue) -> None:
    """While it runs: a batch of 50 that takes ten seconds has used ten seconds, not 500; and so it is when it crashed."""
    push(queue, "a", 100)
    push(queue, "b", 100, "other")
    first = fetch(queue, 2)
    queue.settle([Outcome.finish(lease, took=0.01) for lease in first], now=NOW + 1)
    leases = [lease for lease in fetch(queue, 2, NOW + 1) if lease.user_id == "a"]
    queue.user("a").set_organization("g", now=NOW + 5)
    assert queue.check_invariants() == []
    queue.settle([Outcome.crash(lease, "died") for lease in leases], now=NOW + 11)
    assert queue.check_invariants() == []
    assert queue.user("a").stats(now=NOW + 11).busy_seconds == pytest.approx(0.5 + 10)


def test_a_batch_counts_as_one_turn_if_shares_are_counted_in_tasks(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(fair_by="tasks"))
    push(queue, "a", 500)
    push(queue, "b", 20, "other")
    turns = Counter()  # type: Counter[str]
    for step in range(16):
        (lease, *others) = fetch(queue, 1, NOW + step)
        turns[lease.user_id] += 1
        queue.settle([Outcome.finish(settled, took=0.1) for settled in (lease, *others)], now=NOW + step)
    assert turns == {"a": 8, "b": 8}
    assert queue.check_invariants() == []


def test_a_released_task_can_be_taken_alone(queue: FairQueue) -> None:
    ids = push(queue, "a", 3)
    leases = fetch(queue, 1)
    queue.settle([Outcome.release(lease) for lease in leases], now=NOW + 1)
    assert queue.check_invariants() == []
    alone = [queue.pop("w", now=NOW + 2) for _ in range(3)]
    assert [lease.task_id for lease in alone if lease] == ids
    assert queue.check_invariants() == []
    assert all(lease and queue.settle([Outcome.finish(lease)], now=NOW + 4) for lease in alone)
    assert queue.user("a").stats(now=NOW + 4).busy_seconds == pytest.approx(6)
