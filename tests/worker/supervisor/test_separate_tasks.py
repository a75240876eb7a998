"""How long tasks that must run alone are put off, while a worker has no room for them. The tests pass the time in."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import NamedTuple

import pytest

from django_fairque.worker.supervisor.separate_tasks import (
    MAX_SUSPECT_RETURN_SECONDS,
    SUSPECT_RETURN_SECONDS,
    SeparateTask,
    SeparateTasks,
)

STEP = 0.01
"""Seconds of a step of the simulated time."""


def _suspect(user: str, number: int) -> SeparateTask:
    return SeparateTask(0, f"{user}-{number}", number, user, "it was running when its process died")


class Result(NamedTuple):
    """Of a simulation: how long it took, and how often a task was fetched and given back."""

    seconds: float
    given_back: int


def _run(users: int, tasks: int, run_seconds: float, workers: int) -> Result:
    """Have ``workers`` run that many suspects of each of the users. Each has free slots, so it fetches all the time."""
    ready = deque(_suspect(f"user-{user}", number) for number in range(tasks) for user in range(users))
    put_off: list[tuple[float, SeparateTask]] = []
    separate = [SeparateTasks(0) for _ in range(workers)]
    running: list[tuple[SeparateTask, float] | None] = [None] * workers
    left, given_back, steps = users * tasks, 0, 0
    order, shuffle = list(range(workers)), random.Random(1).shuffle  # workers are equally fast
    while left:
        now = steps * STEP
        assert now < 2 * users * tasks * run_seconds, "some of the tasks do not run"
        steps += 1
        while put_off and put_off[0][0] <= now:
            ready.append(heapq.heappop(put_off)[1])
        shuffle(order)
        for index in order:
            worker = separate[index]
            if (current := running[index]) and current[1] <= now:
                worker.end(current[0], now)
                running[index], left = None, left - 1
            if ready:
                task = ready.popleft()
                delay = worker.add(task, now)
                if delay is not None:
                    heapq.heappush(put_off, (now + delay, task))
                    given_back += 1
            if running[index] is None and (following := worker.next()):
                worker.begin(following, now)
                running[index] = following, now + run_seconds
    return Result(steps * STEP, given_back)


@pytest.mark.parametrize(
    ("users", "workers", "run_seconds", "most"), [(7, 6, 1.2, 8), (1, 3, 0.5, 3), (1, 1, 0.5, 3), (3, 2, 5.0, 18)]
)
def test_few_tasks_are_given_back_for_each_that_runs(users: int, workers: int, run_seconds: float, most: int) -> None:
    tasks = 60
    result = _run(users, tasks, run_seconds, workers)
    assert result.given_back <= most * users * tasks
    assert result.seconds <= 1.1 * users * tasks * run_seconds / workers + 1


def test_the_last_one_is_ready_again_after_ten_minutes() -> None:
    separate = SeparateTasks(0)
    delays = [separate.add(_suspect("mallory", number), 0.0) for number in range(100_000)]
    assert delays[:2] == [None, SUSPECT_RETURN_SECONDS]
    assert delays[-1] == MAX_SUSPECT_RETURN_SECONDS


def test_others_have_room_however_many_one_user_has() -> None:
    separate = SeparateTasks(0)
    for number in range(1000):
        separate.add(_suspect("mallory", number), 0.0)
    assert separate.add(_suspect("ann", 1), 0.0) is None
