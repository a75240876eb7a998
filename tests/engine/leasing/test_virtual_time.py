"""No user moves the virtual time too far (docs/contributing/decisions/0026-the-virtual-time-is-what-was-reached.md)."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any

import pytest

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, task


def serve(queue: FairQueue, rounds: int, now: float) -> dict[str, int]:
    """Return how many tasks of 0.1 s each user got on 16 slots."""
    got: dict[str, int] = {}
    for _ in range(rounds):
        leases = queue.pop_batch(16, "w", now=now)
        now += 0.1
        for lease in leases:
            got[lease.user_id] = got.get(lease.user_id, 0) + 1
        queue.settle([Outcome.finish(lease, took=0.1) for lease in leases], now=now)
    return got


@pytest.mark.parametrize("slowest", [0.1, 300.0])
def test_a_wrong_guess_of_run_times_gives_no_user_a_head_start(make_queue: MakeQueue, slowest: float) -> None:
    queue = make_queue(fair_by="time")
    queue.push_batch([task("alone") for _ in range(2000)], now=NOW)
    for took in [0.1] * 20 + [slowest]:
        queue.finish(pop(queue), took=took, now=NOW)
    serve(queue, 1, NOW + 1)
    queue.push_batch([task("newcomer") for _ in range(2000)], now=NOW + 2)
    got = serve(queue, 50, NOW + 2)
    assert abs(got["alone"] - got["newcomer"]) <= 32


def test_a_released_task_gives_no_head_start(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks")
    queue.push_batch([task("alone") for _ in range(200)], now=NOW)
    queue.settle([Outcome.release(lease) for lease in queue.pop_batch(100, "w", now=NOW)], now=NOW + 1)
    queue.push_batch([task("newcomer") for _ in range(200)], now=NOW + 2)
    started = [lease.user_id for _ in range(50) if (lease := queue.pop("w", now=NOW + 3))]
    assert abs(started.count("alone") - started.count("newcomer")) <= 1


@pytest.mark.parametrize("dedicated", [0, 9])
def test_dedicated_workers_do_not_change_the_shares_of_others(make_queue: MakeQueue, dedicated: int) -> None:
    queue = make_queue(fair_by="tasks")
    for user in "abc":
        queue.push_batch([task(user) for _ in range(1300)], now=NOW)
    queue.user("b").set_weight(4, now=NOW)
    got = dict.fromkeys("abc", 0)
    for number in range(120):
        lease = pop(queue, NOW + number, worker="shared")
        got[lease.user_id] += 1
        queue.finish(lease, took=1, now=NOW + number)
        for _ in range(dedicated):
            other = pop(queue, NOW + number, worker="dedicated", users=["a"], steal="*")
            queue.finish(other, took=1, now=NOW + number)
    assert got["b"] / got["c"] == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("fair_by", "waiting", "dedicated"),
    [("time", 1, 1), ("tasks", 1, 2), ("time", 2, 2), ("tasks", 3, 2), ("time", 40, 2)],
)
def test_a_user_with_dedicated_workers_gets_its_share_of_all_workers(
    make_queue: MakeQueue, fair_by: str, waiting: int, dedicated: int
) -> None:
    """However few of its tasks wait at once: what a list gives is no turn, and no right to one."""
    queue, now, has = make_queue(fair_by=fair_by), NOW, 0
    for user in "bc":
        queue.push_batch([task(user) for _ in range(240)], now=NOW)
    got, running = Counter[str](), list[Any]()
    while got.total() < 240:
        queue.push_batch([task("a") for _ in range(waiting - has)], now=now)
        has = waiting
        for kind, slots, users in (("own", dedicated, ["a"]), ("shared", 2, "*")):
            free = slots - sum(run[2] == kind for run in running)
            for lease in queue.pop_batch(free, "w", users, now=now) if free else []:
                has -= lease.user_id == "a"
                got[lease.user_id] += kind == "shared"
                heapq.heappush(running, (now + 0.1, lease.token, kind, lease))
        now, _, _, lease = heapq.heappop(running)
        queue.finish(lease, took=0.1, now=now)
    assert got["b"] == pytest.approx(got["c"], abs=4)
    assert got["a"] <= 1.1 * got["b"]
    assert waiting < 40 or got["a"] >= 0.9 * got["b"]


@pytest.mark.parametrize("moves", [False, True])
def test_a_move_between_organizations_gives_no_user_an_advantage(make_queue: MakeQueue, moves: bool) -> None:
    queue = make_queue(fair_by="time")
    queue.user("member").set_organization("organization", now=NOW)
    queue.push_batch([task("mover") for _ in range(30)], now=NOW)
    lease = pop(queue)
    queue.finish(lease, took=3600, now=NOW)  # so the next ones are expected to take an hour
    leases = queue.pop_batch(10, "w", ["mover"], lease=9e4, now=NOW)
    queue.user("mover").pause(now=NOW)
    for user in ("member", "alone"):
        queue.push_batch([task(user) for _ in range(300)], now=NOW)
    _serve_one_by_one(queue, 10)
    if moves:
        queue.user("mover").set_organization("organization", now=NOW)
    queue.settle([Outcome.release(lease) for lease in leases], now=NOW)
    got = _serve_one_by_one(queue, 200)
    assert abs(got.count("member") - got.count("alone")) <= 2


def _serve_one_by_one(queue: FairQueue, times: int) -> list[str]:
    """The users of tasks of ten seconds."""
    users = []
    for _ in range(times):
        lease = pop(queue)
        users.append(lease.user_id)
        queue.finish(lease, took=10, now=NOW)
    return users
