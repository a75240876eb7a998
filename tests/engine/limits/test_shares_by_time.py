"""A limit is busy while tasks wait for it, and its users share it, with tasks that take 0.5 to 1.5 s.

Two simpler rules fail in these worlds. A place that is promised to a user before its turn is idle meanwhile. Users that are
examined only in their turns of the ring never get a place if they have other tasks too.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from redis import Redis

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

SLOTS = 16


@dataclass
class Served:
    """The starts at the limit by user, and how busy the limit was."""

    starts: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0


def serve(
    redis: Redis,
    cap: int,
    users: dict[str, tuple[int, int]],
    seconds: float,
    pause: tuple[float, list[str]] = (1e9, []),
) -> Served:
    """Serve users, each with a number of tasks of one limit and of other tasks, for some simulated seconds.

    ``pause``: the second after which these users are paused.
    """
    chance, queue, served = random.Random(1), FairQueue(redis, config=QueueConfig(lease_seconds=1e6)), Served()
    limit = TaskLimit("k", cap)
    tasks = [task(user, limits=[limit]) for user, (limited, _) in users.items() for _ in range(limited)]
    tasks += [task(user) for user, (_, others) in users.items() for _ in range(others)]
    queue.push_batch(tasks, now=NOW)
    limited_ids = {one.task_id for one in tasks if one.limits}
    left = Counter({user: limited for user, (limited, _) in users.items()})
    running: list[tuple[float, int, Lease]] = []
    now, last, area = NOW, NOW, 0.0
    number, at_limit = 0, 0
    ended: list[Lease] = []
    while now < NOW + seconds:
        if now >= NOW + pause[0]:
            for user in pause[1]:
                queue.user(user).pause(now=now)
                del left[user]
            pause = (1e9, [])
        settled = queue.settle(
            [Outcome.finish(lease) for lease in ended], fetch=SLOTS - len(running), worker="w", now=now
        )
        for lease in settled.leases:
            number += 1
            heapq.heappush(running, (now + chance.uniform(0.5, 1.5), number, lease))
            if lease.task_id in limited_ids:
                served.starts[lease.user_id] += 1
                left[lease.user_id] -= 1
                at_limit += 1
        if not running:
            break
        if +left:
            area, last = area + at_limit * (running[0][0] - now), running[0][0]
        now, _, lease = heapq.heappop(running)
        at_limit -= lease.task_id in limited_ids
        ended = [lease]
    served.busy = area / cap / (last - NOW)
    return served


def names(number: int) -> list[str]:
    return [f"u{index}" for index in range(number)]


@pytest.mark.parametrize(
    ("cap", "limited", "others"),
    [(4, 20, 20), (4, 20, 0), (1, 20, 20)],
    ids=["other work too", "limited tasks only", "one place"],
)
def test_a_limit_is_busy_and_each_user_gets_its_share_of_it(redis: Redis, cap: int, limited: int, others: int) -> None:
    served = serve(redis, cap, dict.fromkeys(names(50), (limited, others)), 100)
    assert served.busy > 0.99
    equal = served.starts.total() / 50
    assert all(served.starts[user] >= equal / 2 - 1 for user in names(50))


def test_paused_users_do_not_block_a_limit_for_other_users(redis: Redis) -> None:
    users = names(50)
    served = serve(redis, 4, dict.fromkeys(users, (20, 20)), 100, (20, users[:25]))
    assert served.busy > 0.99


@pytest.mark.thorough
def test_a_limit_is_busy_with_thousands_of_users_of_few_tasks(redis: Redis) -> None:
    served = serve(redis, 4, dict.fromkeys(names(2000), (2, 2)), 30)
    assert served.busy > 0.99


@pytest.mark.thorough
def test_users_with_limited_tasks_only_and_users_with_other_tasks_share_a_limit_equally(redis: Redis) -> None:
    """Every second user has tasks of the limit only."""
    users = {user: (100, 0 if index % 2 == 0 else 200) for index, user in enumerate(names(20))}
    served = serve(redis, 4, users, 75)
    halves = [sum(served.starts[user] for user in names(20)[first::2]) for first in (0, 1)]
    assert served.busy > 0.99
    assert 0.9 < halves[0] / halves[1] < 1.1


def test_users_with_batches_and_users_with_single_tasks_get_the_same_time_at_a_limit(redis: Redis) -> None:
    """Each task takes a second, and eight tasks of a batch run one after the other. A batch takes one place."""
    queue, used = FairQueue(redis, config=QueueConfig(lease_seconds=1e6)), Counter[str]()
    limits = [TaskLimit("k", 1)]
    queue.push_batch([task("batches", name="batch", limits=limits) for _ in range(400)], now=NOW)
    queue.push_batch([task("single", limits=limits) for _ in range(400)], now=NOW)
    ended: list[Outcome] = []
    for number in range(60):
        leases = queue.settle(ended, fetch=8, worker="w", now=NOW + 8 * number, batches={"batch": 8}).leases
        ended = [Outcome.finish(lease, took=1.0) for lease in leases]
        used.update(lease.user_id for lease in leases)
    assert used.total() > 60
    assert 0.8 < used["batches"] / used["single"] < 1.25
