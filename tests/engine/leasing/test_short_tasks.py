"""A user whose tasks are short gets several in a turn, charged by time: how many, when not, and what it costs other users."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task

SHORT = 0.0001
"""Seconds of a task that costs the least that a task is charged: ten of them are a turn."""


@pytest.fixture
def queue(make_queue: MakeQueue) -> FairQueue:
    return make_queue(fair_by="time")


def run(queue: FairQueue, user: str, *took: float) -> None:
    """Run tasks of this user, one after the other, which take so long."""
    for seconds in took:
        queue.push(task(user), now=NOW)
        queue.finish(pop(queue, users=[user]), took=seconds, now=NOW)


def finish(queue: FairQueue, leases: Sequence[Lease], took: float) -> None:
    queue.settle([Outcome.finish(lease, took=took) for lease in leases], now=NOW)


def turns(leases: Sequence[Lease]) -> list[tuple[str, int]]:
    return [(user, len(list(some))) for user, some in groupby(lease.user_id for lease in leases)]


@pytest.mark.parametrize(
    ("took", "size"), [(SHORT / 10, 10), (SHORT, 10), (0.0003, 3), (0.0005, 2), (0.0006, 1), (1.0, 1)]
)
def test_a_turn_has_the_tasks_that_take_a_millisecond_together(queue: FairQueue, took: float, size: int) -> None:
    for user in "ab":
        run(queue, user, took)
        push_many(queue, user, 50)
    leases = queue.pop_batch(41, "w", now=NOW)
    assert len(leases) == 41
    *whole, _ = turns(leases)
    assert {count for _, count in whole} == {size}
    assert [user for user, _ in whole[::2]] == [whole[0][0]] * len(whole[::2])


def test_retries_of_tasks_from_a_large_turn_run_singly(queue: FairQueue) -> None:
    run(queue, "a", SHORT)
    queue.push_batch([task("a", name="batch") for _ in range(3)], now=NOW)
    batch = queue.settle([], 1, worker="w", batches={"batch": 3}, now=NOW).leases
    queue.settle([Outcome.fail(lease, "x", delay=1, took=SHORT) for lease in batch], now=NOW)
    leases = queue.settle([], 3, worker="w", now=NOW + 2).leases
    assert turns(leases) == [("a", 3)]
    assert queue.check_invariants() == []


def test_a_user_without_recorded_run_times_gets_one_task_per_turn(queue: FairQueue) -> None:
    for user in "ab":
        push_many(queue, user, 20)
    assert {count for _, count in turns(queue.pop_batch(20, "w", now=NOW))} == {1}


@pytest.mark.parametrize(("took", "size"), [(SHORT, 2), (0.0005, 2), (0.0006, 1), (1.0, 1)])
def test_users_without_run_times_get_two_short_tasks_a_turn(queue: FairQueue, took: float, size: int) -> None:
    for user in ("a", "b", "c"):
        push_many(queue, user, 20)
    finish(queue, queue.pop_batch(3, "w", users=["c"], now=NOW), took)
    leases = queue.pop_batch(8, "w", users="*", now=NOW)
    assert {count for user, count in turns(leases) if user != "c"} == {size}


def test_newcomers_get_one_task_in_their_first_turn(queue: FairQueue) -> None:
    run(queue, "a", SHORT)
    push_many(queue, "a", 100)
    queue.pop_batch(25, "w", now=NOW)
    for user in ("new", "newer"):
        push_many(queue, user, 20)
    assert turns(queue.pop_batch(2, "w", now=NOW)) == [("new", 1), ("newer", 1)]


def test_a_turn_is_one_task_if_shares_are_counted_in_tasks(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks")
    for user in "ab":
        run(queue, user, SHORT)
        push_many(queue, user, 20)
    assert {count for _, count in turns(queue.pop_batch(20, "w", now=NOW))} == {1}


def test_tasks_of_alternating_length_gain_no_advantage(queue: FairQueue) -> None:
    run(queue, "honest", 0.05)
    push_many(queue, "honest", 400)
    push_many(queue, "alternates", 400)
    seconds = {"honest": 0.0, "alternates": 0.0}
    number = 0
    for _ in range(30):
        (lease,) = queue.pop_batch(1, "w", now=NOW)
        number += lease.user_id == "alternates"
        took = 0.05 if lease.user_id == "honest" else 0.1 * (number % 2)
        seconds[lease.user_id] += took
        queue.finish(lease, took=took, now=NOW)
        assert abs(seconds["honest"] - seconds["alternates"]) <= 0.151


def test_short_tasks_that_become_long_get_one_large_turn_and_then_single_tasks(queue: FairQueue) -> None:
    """The user pays for the single advantage: the others catch up before it has another turn."""
    for user in ("honest", "sudden"):
        run(queue, user, *[SHORT] * 30)
        push_many(queue, user, 2000)
    leases = queue.pop_batch(20, "w", now=NOW)
    sudden = [lease for lease in leases if lease.user_id == "sudden"]
    assert len(sudden) == 10
    finish(queue, sudden, 0.01)
    finish(queue, [lease for lease in leases if lease.user_id == "honest"], SHORT)
    served = 0
    while True:
        leases = queue.pop_batch(50, "w", now=NOW)
        users = [lease.user_id for lease in leases]
        if "sudden" in users:
            break
        served += len(users)
        finish(queue, leases, SHORT)
    assert served == pytest.approx(10 * 0.01 / SHORT, abs=150)
    assert [size for user, size in turns(leases) if user == "sudden"] == [1]


def test_worker_time_is_shared_by_weight(queue: FairQueue) -> None:
    took = {"one": SHORT, "two": 0.0002, "four": 0.0004}
    for weight, user in ((1, "one"), (2, "two"), (4, "four")):
        queue.user(user).set_weight(weight, now=NOW)
        run(queue, user, took[user])
        push_many(queue, user, 3000)
    seconds = dict.fromkeys(took, 0.0)
    for _ in range(40):
        leases = queue.pop_batch(70, "w", now=NOW)
        for lease in leases:
            seconds[lease.user_id] += took[lease.user_id]
        queue.settle([Outcome.finish(lease, took=took[lease.user_id]) for lease in leases], now=NOW)
    assert seconds["two"] == pytest.approx(2 * seconds["one"], rel=0.05)
    assert seconds["four"] == pytest.approx(4 * seconds["one"], rel=0.05)


def test_a_newcomer_is_served_right_after_a_turn_of_several_tasks(queue: FairQueue) -> None:
    for user in "ab":
        run(queue, user, SHORT)
        push_many(queue, user, 100)
    queue.pop_batch(25, "w", now=NOW)
    push_many(queue, "new", 20)
    assert queue.pop_batch(20, "w", now=NOW)[0].user_id == "new"


def test_limits_are_respected_in_turns_of_several_short_tasks(queue: FairQueue) -> None:
    for user in ("capped", "rated", "member", "colleague"):
        run(queue, user, SHORT)
    queue.user("capped").set_max_running(4, now=NOW)
    queue.user("rated").set_rate("2/s", now=NOW)
    for user in ("member", "colleague"):
        queue.user(user).set_organization("acme", now=NOW)
    queue.organization("acme").set_max_running(3, now=NOW)
    for user in ("capped", "rated", "member", "colleague"):
        push_many(queue, user, 20)
    users = [lease.user_id for lease in queue.pop_batch(100, "w", now=NOW + 10)]
    assert users.count("capped") == 4
    assert users.count("rated") == 1
    assert users.count("member") + users.count("colleague") == 3


def test_members_of_an_organization_divide_its_share(queue: FairQueue) -> None:
    for user in ("alone", "member", "colleague"):
        run(queue, user, SHORT)
    for user in ("member", "colleague"):
        queue.user(user).set_organization("acme", now=NOW)
    for user in ("alone", "member", "colleague"):
        push_many(queue, user, 1000)
    users = []
    for _ in range(20):
        leases = queue.pop_batch(40, "w", now=NOW)
        users += [lease.user_id for lease in leases]
        finish(queue, leases, SHORT)
    assert users.count("alone") == pytest.approx(400, abs=11)
    assert users.count("member") == pytest.approx(200, abs=11)


def test_lists_of_users_and_workers_with_batches_get_one_task_per_turn(queue: FairQueue) -> None:
    for user in "ab":
        run(queue, user, SHORT)
        push_many(queue, user, 100)
    assert {count for _, count in turns(queue.pop_batch(20, "w", ["a", "b"], now=NOW))} == {1}
    batched = queue.settle([], 20, worker="w", batches={"other": 5}, now=NOW).leases
    assert {count for _, count in turns(batched)} == {1}


def test_the_tasks_of_a_large_turn_are_counted_like_single_tasks(queue: FairQueue) -> None:
    run(queue, "a", SHORT)
    push_many(queue, "a", 30)
    leases = queue.pop_batch(20, "w", now=NOW)
    assert len({lease.token for lease in leases}) == 20
    found = queue.user("a").stats()
    assert (found.sizes.ready, found.sizes.running) == (10, 20)
    finish(queue, leases, SHORT)
    found = queue.user("a").stats()
    assert (found.sizes.running, found.started, found.finished) == (0, 21, 21)
    assert found.busy_seconds == pytest.approx(21 * SHORT)
    assert not queue.check_invariants()


def test_a_call_reads_and_writes_few_users(queue: FairQueue, redis: Redis) -> None:
    for number in range(100):
        run(queue, f"u{number}", SHORT)
        push_many(queue, f"u{number}", 20)
    queue.pop("w", now=NOW)
    # Each task: its record and head read, its record written. Each of five users: record, place in the ring, queue.
    assert commands(redis, lambda: queue.pop_batch(50, "w", now=NOW)) <= 3 * 50 + 5 * 5 + 20
