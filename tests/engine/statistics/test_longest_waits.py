"""The longest wait counts tasks that could start. Tasks that a pause or a limit holds back are reported separately."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from redis import Redis

from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import sweep_all, task

AGO = 100_000.0
"""Seconds: all promises to start are broken by then, whichever the priority."""


def pause(queue: FairQueue) -> None:
    queue.user("a").pause()


def limit_running(queue: FairQueue) -> None:
    queue.user("a").set_max_running(1)
    queue.pop("w", ["a"])


def limit_rate(queue: FairQueue) -> None:
    queue.user("a").set_rate("1/d")
    queue.pop("w", ["a"])


def pause_its_organization(queue: FairQueue) -> None:
    queue.user("a").set_organization("g")
    queue.organization("g").pause()


def push_old(queue: FairQueue, user: str, count: int, ago: float) -> None:
    queue.push_batch([task(user) for _ in range(count)], now=time.time() - ago)


@pytest.mark.parametrize("hold", [pause, limit_running, limit_rate, pause_its_organization])
@pytest.mark.parametrize("size", [3, 300])
def test_the_oldest_wait_ignores_held_users(queue: FairQueue, hold: Callable[[FairQueue], None], size: int) -> None:
    push_old(queue, "a", size, AGO)
    push_old(queue, "b", 1, 50)
    sweep_all(queue, None)
    assert queue.get_stats().oldest_wait_seconds == pytest.approx(AGO, abs=20)
    hold(queue)
    stats = queue.get_stats()
    assert stats.oldest_wait_seconds == pytest.approx(50, abs=20)
    assert stats.held_back_wait_seconds == pytest.approx(AGO, abs=20)
    assert [wait.user_id for wait in queue.longest_waits()] == ["b"]


def test_members_of_an_organization_that_is_served_could_start(queue: FairQueue) -> None:
    push_old(queue, "held", 100, AGO)
    push_old(queue, "a", 1, 500)
    queue.user("a").set_organization("g")
    queue.user("held").pause()
    assert [wait.user_id for wait in queue.longest_waits()] == ["a"]
    assert queue.get_stats().oldest_wait_seconds == pytest.approx(500, abs=20)


def test_the_longest_held_back_wait_is_zero_if_no_user_is_held_back(queue: FairQueue) -> None:
    push_old(queue, "a", 2, 50)
    assert queue.get_stats().held_back_wait_seconds == 0
    queue.user("a").pause()
    assert queue.get_stats().oldest_wait_seconds == 0
    assert queue.longest_waits() == []


@pytest.mark.parametrize("shards", [1, 2])
def test_a_paused_queue_holds_all_its_tasks_back(redis: Redis, shards: int) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=shards))
    for user in ("a", "b", "c", "d"):
        push_old(queue, user, 1, 50)
    queue.pause()
    stats = queue.get_stats()
    assert stats.oldest_wait_seconds == 0
    assert stats.held_back_wait_seconds == pytest.approx(50, abs=20)
    assert queue.longest_waits() == []
    queue.resume()
    stats = queue.get_stats()
    assert stats.oldest_wait_seconds == pytest.approx(50, abs=20)
    assert stats.held_back_wait_seconds == 0


def test_a_wait_is_exact_and_never_negative(queue: FairQueue) -> None:
    for _ in range(5):
        queue.push(task("a"))
        assert 0 <= queue.get_stats().oldest_wait_seconds < 20
        queue.user("a").purge()
        time.sleep(0.21)  # at another part of the second each time


@pytest.mark.parametrize(
    ("limit", "is_held"),
    [
        (TaskLimit("k", 2), False),
        (TaskLimit("k", 1), True),
        (TaskLimit("k", gap=10**11), True),
        (TaskLimit("k", 1, is_of_user=True), True),
    ],
)
def test_the_oldest_wait_ignores_tasks_at_limits_without_a_place(
    queue: FairQueue, limit: TaskLimit, is_held: bool
) -> None:
    queue.push_batch([task("a", limits=[limit]) for _ in range(2)], now=time.time() - AGO)
    queue.push(task("a"), now=time.time() - 50)
    assert queue.pop("w")
    stats = queue.get_stats(0)
    waits = [stats.oldest_wait_seconds, stats.held_back_wait_seconds]
    assert waits == pytest.approx([50, AGO] if is_held else [AGO, 0], abs=20)
    queue.limit("k", "a" if limit.is_of_user else None).close()
    assert queue.get_stats(0).held_back_wait_seconds == pytest.approx(AGO, abs=20)
