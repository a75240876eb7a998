"""Sharing between users: who is served next, and how much each gets."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest

from django_fairque.engine.model.errors import BacklogFullError, TaskValidationError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task
from tests.servers import Server

HOSTILE = ["{x}", "a:b", "a,b", "a", "x\ny", "n\0l", "\U0001f600" * 64, "user:1", "a:critical", "a:normal", "%00"]
HOSTILE += ["../", "__proto__", "[^*]?", "\u202egnp", " ", "0", "e\u0301", "\u00e9"]


def served(leases: list[Lease]) -> list[str]:
    return [lease.user_id for lease in leases]


@pytest.mark.parametrize("seed", range(3))
def test_users_with_a_backlog_never_differ_by_more_than_one_task(queue: FairQueue, seed: int) -> None:
    chance = random.Random(seed)
    order: list[str] = []
    joined: dict[str, int] = {}
    for step in range(60):
        if step < 5 or chance.random() < 0.3:
            name = f"u{chance.random()}"  # the names have a random order
            joined[name] = len(order)
            push_many(queue, name, 150)
        order += served(queue.pop_batch(chance.randint(1, 7), "w", now=NOW))
    for one in joined:
        for other in joined:
            lead = 0
            for user in order[max(joined[one], joined[other]) :]:
                lead += (user == one) - (user == other)
                assert abs(lead) <= 1


def test_users_with_only_expired_tasks_take_no_turns_of_a_batch(queue: FairQueue) -> None:
    """Users with only expired tasks fill the first page of the ring. Users beyond that page must not be passed over."""
    for number in range(109):  # a sweep takes 100 of them
        queue.push(task(f"expired{number}", expires_at=NOW + 10), now=NOW)
    for user in "bc":
        queue.push_batch([task(user) for _ in range(30)], now=NOW + 1)
    started = [lease.user_id for _ in range(4) for lease in queue.pop_batch(10, "w", now=NOW + 20)]
    assert len(started) == 40
    for count in range(1, 41):
        assert abs(started[:count].count("b") - started[:count].count("c")) <= 1


def test_users_are_served_in_proportion_to_their_weights(queue: FairQueue) -> None:
    for weight in (1, 2, 4):
        queue.user(f"w{weight}").set_weight(weight)
        push_many(queue, f"w{weight}", 1500)
    got: Counter[str] = Counter()
    for _ in range(49):
        got.update(served(queue.pop_batch(50, "w", now=NOW)))
    assert [got["w1"], got["w2"], got["w4"]] == pytest.approx([350, 700, 1400], rel=0.02)


def test_a_weight_acts_at_once_on_a_backlog(queue: FairQueue) -> None:
    push_many(queue, "a", 500)
    push_many(queue, "b", 500)
    queue.pop_batch(100, "w", now=NOW)
    queue.user("a").set_weight(3, now=NOW)
    got = Counter(served(queue.pop_batch(200, "w", now=NOW)))
    assert got["a"] == pytest.approx(150, abs=2)


def simulate(queue: FairQueue, cost: dict[str, float], slots: int, seconds: float) -> dict[str, float]:
    """Worker time that each user gets on ``slots`` slots that are always busy."""
    busy = dict.fromkeys(cost, 0.0)
    running: list[tuple[float, int, Lease]] = []
    for lease in queue.pop_batch(slots, "w", now=NOW):
        heapq.heappush(running, (NOW + cost[lease.user_id], lease.token, lease))
    now = NOW
    while now < NOW + seconds:
        now, _, lease = heapq.heappop(running)
        took = cost[lease.user_id]
        busy[lease.user_id] += took
        (following,) = queue.settle([Outcome.finish(lease, took=took)], 1, worker="w", now=now).leases
        heapq.heappush(running, (now + cost[following.user_id], following.token, following))
    return busy


def test_a_user_alone_gets_all_workers_whatever_its_weight(queue: FairQueue) -> None:
    queue.user("a").set_weight(0.001, now=NOW)
    queue.user("b").set_weight(1000, now=NOW)
    push_many(queue, "a", 20)
    assert len(queue.pop_batch(20, "w", now=NOW)) == 20


def test_the_priority_of_a_task_does_not_affect_the_order_of_users(queue: FairQueue) -> None:
    push_many(queue, "a", 10, priority=1)
    push_many(queue, "b", 10, priority=6)
    assert served(queue.pop_batch(20, "w", now=NOW)) == ["a", "b"] * 10


def test_a_retry_does_not_delay_other_users(queue: FairQueue) -> None:
    push_many(queue, "a", 2)
    push_many(queue, "b", 4)
    failed, _ = queue.pop_batch(2, "w", lease=600, now=NOW)
    queue.fail(failed, "no", delay=60, now=NOW)
    assert served(queue.pop_batch(9, "w", lease=600, now=NOW)) == ["a", "b", "b", "b"]
    push_many(queue, "b", 4)
    assert sorted(served(queue.pop_batch(2, "w", lease=600, now=NOW + 60))) == ["a", "b"]


def test_users_get_equal_worker_time_if_shares_are_counted_in_time(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="time")
    push_many(queue, "fast", 3000)
    push_many(queue, "slow", 300)
    busy = simulate(queue, {"fast": 0.01, "slow": 0.1}, slots=4, seconds=10)
    assert busy["slow"] / busy["fast"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("fair_by", ["tasks", "time"])
def test_a_newcomer_is_the_next_to_be_served(make_queue: MakeQueue, fair_by: str) -> None:
    queue = make_queue(fair_by=fair_by)
    queue.push_batch([task(f"b{i}") for i in range(500) for _ in range(4)], now=NOW)
    chance, held, now = random.Random(1), queue.pop_batch(7, "w", now=NOW), NOW
    for trial in range(100):
        held += queue.pop_batch(7, "w", now=now)
        chance.shuffle(held)
        for lease in held[:5]:
            queue.finish(lease, took=chance.choice([0.0001, 0.01, 2]), now=now)
        held, now = held[5:], now + 0.01
        queue.push(task(f"new{trial}", 1), now=now)
        assert served(queue.pop_batch(1, "w", now=now)) == [f"new{trial}"]


@pytest.mark.parametrize("fair_by", ["tasks", "time"])
def test_a_user_who_pushes_one_task_at_a_time_gains_no_advantage(make_queue: MakeQueue, fair_by: str) -> None:
    queue, now = make_queue(fair_by=fair_by), NOW
    for i in range(4):
        push_many(queue, f"b{i}", 300)
    queue.push(task("onoff"), now=now)
    got: Counter[str] = Counter()
    running = [(now + 0.05, lease.token, lease) for lease in queue.pop_batch(2, "w", now=now)]
    while got.total() < 600:
        now, _, lease = heapq.heappop(running)
        got[lease.user_id] += 1
        queue.finish(lease, took=0.05, now=now)
        if lease.user_id == "onoff":
            queue.push(task("onoff"), now=now)
        (following,) = queue.pop_batch(1, "w", now=now)
        heapq.heappush(running, (now + 0.05, following.token, following))
    assert got["onoff"] <= 1.05 * 600 / 5


def test_users_with_equal_shares_are_served_by_arrival(queue: FairQueue) -> None:
    names = ["m", "z", "a", "q", "B"]
    for name in names:
        push_many(queue, name, 3)
    assert served(queue.pop_batch(15, "w", now=NOW)) == names * 3


def test_a_paused_user_is_not_served_and_keeps_its_tasks(queue: FairQueue) -> None:
    push_many(queue, "a", 2)
    queue.user("a").pause(now=NOW)
    push_many(queue, "a", 1)
    assert queue.pop("w", now=NOW) is None
    queue.user("a").resume(now=NOW)
    assert len(queue.pop_batch(9, "w", now=NOW)) == 3


def test_a_limit_of_running_tasks_is_freed_by_the_end_of_a_lease(queue: FairQueue) -> None:
    push_many(queue, "a", 5)
    queue.user("a").set_max_running(2, now=NOW)
    first, second = queue.pop_batch(9, "w", now=NOW)
    queue.finish(first, now=NOW)
    assert len(queue.pop_batch(9, "w", now=NOW)) == 1
    queue.release(second, now=NOW)
    assert len(queue.pop_batch(9, "w", now=NOW)) == 1
    queue.user("a").set_max_running(None, now=NOW)
    assert len(queue.pop_batch(9, "w", now=NOW)) == 2


def test_a_user_that_is_listed_twice_gets_one_turn(queue: FairQueue) -> None:
    push_many(queue, "a", 5)
    queue.user("a").set_max_running(1, now=NOW)
    (lease,) = queue.pop_batch(2, "w", ["a", "a"], now=NOW)
    queue.finish(lease, now=NOW)
    (lease,) = queue.pop_batch(2, "w", ["b"], steal=["a", "a"], now=NOW)
    queue.finish(lease, now=NOW)
    queue.user("a").set_max_running(None, now=NOW)
    queue.user("a").set_rate("1/s", now=NOW)
    assert len(queue.pop_batch(2, "w", ["a", "b", "a"], now=NOW)) == 1


def test_a_rate_limits_starts_and_permits_the_next_start_in_time(queue: FairQueue) -> None:
    queue.user("a").set_rate("2/s", burst=2, now=NOW)
    push_many(queue, "a", 6)
    starts = {step: len(queue.pop_batch(9, "w", now=NOW + step / 10)) for step in range(16)}
    assert starts[0] == 2  # the burst allows two starts at once
    assert sum(starts.values()) == 5
    assert starts[5] == starts[10] == starts[15] == 1
    queue.user("a").set_rate(None, now=NOW + 1.5)
    assert len(queue.pop_batch(9, "w", now=NOW + 1.5)) == 1


@pytest.mark.parametrize("burst", [1, 3])
def test_a_released_task_returns_its_rate_token(queue: FairQueue, burst: int) -> None:
    queue.user("a").set_rate(f"{burst}/m", burst=burst, now=NOW)
    push_many(queue, "a", 9)
    for _ in range(3):
        leases = queue.pop_batch(9, "w", now=NOW)
        assert len(leases) == burst
        queue.settle([Outcome.release(lease) for lease in leases], now=NOW)
    assert len(queue.pop_batch(9, "w", now=NOW)) == burst
    assert queue.pop_batch(9, "w", now=NOW + 60 / burst - 1) == []
    assert len(queue.pop_batch(9, "w", now=NOW + 60 / burst + 1)) == 1


def test_a_full_backlog_of_one_user_refuses_no_tasks_of_other_users(queue: FairQueue) -> None:
    queue.user("a").set_max_backlog(2, now=NOW)
    tasks = [task("a"), task("b"), task("a"), task("a", execute_after=NOW + 9), task("b")]
    with pytest.raises(BacklogFullError, match="1 of 5 tasks") as refusal:
        queue.push_batch(tasks, now=NOW)
    assert refusal.value.refused == (tasks[3].task_id,)
    assert [result.status for result in refusal.value.results].count("accepted") == 4  # type: ignore[attr-defined]
    assert queue.get_queue_sizes("a").total == 2


def test_assigned_users_are_served_before_users_to_steal_from(queue: FairQueue) -> None:
    for name in "abcde":
        push_many(queue, name, 2)
    leases = queue.pop_batch(7, "w", users=["b", "d", "nobody"], steal=["a", "e"], now=NOW)
    assert served(leases) == ["b", "d", "b", "d", "a", "e", "a"]
    assert sorted(served(queue.pop_batch(9, "w", users=["b"], steal="*", now=NOW))) == ["c", "c", "e"]
    assert queue.get_queue_sizes("c").ready == 0


@pytest.mark.parametrize("user", HOSTILE)
def test_a_user_id_may_contain_any_characters(queue: FairQueue, user: str) -> None:
    others = [name for name in HOSTILE if name != user]
    queue.push_batch([task(name) for name in others], now=NOW)
    ids = [queue.push(task(user, priority), now=NOW).task_id for priority in (3, 6)]
    queue.push(task(user, execute_after=NOW + 60), now=NOW)
    sizes = queue.get_queue_sizes(user)
    assert (sizes.critical, sizes.normal, sizes.scheduled) == (1, 1, 1)
    lease = pop(queue, users=[user])
    assert (lease.user_id, lease.task_id) == (user, ids[1])
    queue.fail(lease, "x", retry=False, now=NOW)
    assert [entry.original_task.user_id for entry in queue.dlq.list(user_id=user).items] == [user]
    assert queue.user(user).purge(now=NOW) == 2
    assert sorted(served(queue.pop_batch(99, "w", now=NOW))) == sorted(others)
    assert user in queue.users().items


@pytest.mark.parametrize("everyone", [["*"], ("*",), {"*"}, "*"])
def test_a_list_with_a_star_serves_all_users(queue: FairQueue, everyone: Any) -> None:
    """A list with "*" means all users, like ``["*"]`` in settings; also if a user is called "*"."""
    for user in ("free", "paid", "*"):
        push_many(queue, user, 2)
    assert served(queue.pop_batch(2, "w", ["paid"], everyone, now=NOW)) == ["paid", "paid"]
    lease = pop(queue, users=["paid"], steal=everyone)
    settled = queue.settle([Outcome.finish(lease)], 1, users=everyone, now=NOW)
    assert sorted([lease.user_id, settled.leases[0].user_id]) == ["*", "free"]
    assert sorted(served(queue.pop_batch(9, "w", everyone, now=NOW))) == ["*", "free"]


async def test_a_list_with_a_star_serves_all_users_of_an_async_queue(server: Server, queue: FairQueue) -> None:
    push_many(queue, "free", 2)
    client = server.async_client()
    try:
        for lists in ((["paid"], ["*"]), (["*"],)):
            lease = await AsyncFairQueue(client).pop("w", *lists, now=NOW)
            assert lease is not None
    finally:
        await client.aclose()


@pytest.mark.parametrize("shards", [1, 3])
def test_a_list_with_a_star_serves_all_users_on_all_shards(make_queue: MakeQueue, shards: int) -> None:
    queue = make_queue(shards=shards)
    users = [f"u{n}" for n in range(9)]
    for user in users:
        push_many(queue, user, 1)
    leases = [queue.pop("w", ["paid"], ["*"], now=NOW) for _ in range(4)]
    leases += [queue.pop("w", ["*"], now=NOW) for _ in range(5)]
    assert sorted(lease.user_id for lease in leases if lease) == users


def test_a_star_next_to_user_ids_is_refused(queue: FairQueue) -> None:
    with pytest.raises(TaskValidationError, match=r"steal must be '\*' alone or user ids, got '\*' and 1 more"):
        queue.pop("w", ["paid"], ["*", "free"], now=NOW)


def test_a_paused_queue_leases_no_tasks(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    queue.pause(now=NOW)
    assert queue.is_paused()
    assert queue.pop("w", now=NOW) is None
    queue.resume(now=NOW)
    assert queue.pop("w", now=NOW) is not None
