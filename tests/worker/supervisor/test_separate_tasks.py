"""Tests of the delays of tasks that must run alone while a worker has no room for them. The tests pass the time in."""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import NamedTuple

import pytest

from django_fairque.worker.supervisor.separate_tasks import (
    SUSPECT_RETURN_SECONDS,
    AloneReason,
    SeparateTask,
    SeparateTasks,
)

STEP = 0.01
"""Seconds of a step of the simulated time."""


def _task(user: str, number: int, reason: AloneReason = AloneReason.QUARANTINE) -> SeparateTask:
    return SeparateTask(0, f"{user}-{number}", number, user, reason)


class Result(NamedTuple):
    """The result of a simulation: its duration, and the number of tasks that were fetched and given back."""

    seconds: float
    given_back: int


def _run(users: int, tasks: int, run_seconds: float, workers: int, slots: int) -> Result:
    """Have ``workers`` run that many tasks in quarantine of each of the users. Each has free slots, so it always fetches."""
    ready = deque(_task(f"user-{user}", number) for number in range(tasks) for user in range(users))
    put_off: list[tuple[float, SeparateTask]] = []
    separate = [SeparateTasks(slots) for _ in range(workers)]
    running: list[dict[SeparateTask, float]] = [{} for _ in range(workers)]
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
            for task in [task for task, end in running[index].items() if end <= now]:
                worker.end(task, now)
                del running[index][task]
                left -= 1
            if ready:
                task = ready.popleft()
                delay = worker.add(task, now)
                if delay is not None:
                    heapq.heappush(put_off, (now + delay, task))
                    given_back += 1
            while following := worker.next():
                worker.begin(following, now)
                running[index][following] = now + run_seconds
    return Result(steps * STEP, given_back)


@pytest.mark.parametrize(
    ("users", "workers", "run_seconds", "slots", "most"),
    [(7, 6, 1.2, 8, 8), (1, 3, 0.5, 8, 4), (1, 1, 0.5, 8, 3), (3, 2, 5.0, 8, 18)],
)
def test_few_tasks_are_returned_for_each_start(
    users: int, workers: int, run_seconds: float, slots: int, most: int
) -> None:
    tasks = 60
    result = _run(users, tasks, run_seconds, workers, slots)
    assert result.given_back <= most * users * tasks
    assert result.seconds <= 1.2 * users * tasks * run_seconds / (workers * min(slots, users)) + 10


def test_suspects_of_one_user_run_in_as_many_processes_as_there_are_slots() -> None:
    separate = SeparateTasks(8)
    delays = [separate.add(_task("ann", number, AloneReason.SUSPECT), 0.0) for number in range(9)]
    assert delays == [None] * 8 + [SUSPECT_RETURN_SECONDS]
    assert len(_begun(separate)) == 8


def test_one_quarantined_task_of_each_user_runs_at_a_time() -> None:
    separate = SeparateTasks(8)
    delays = [separate.add(_task(user, 1), 0.0) for user in ("ann", "bob")]
    assert delays == [None, None]
    assert separate.add(_task("ann", 2), 0.0) == SUSPECT_RETURN_SECONDS
    assert separate.add(_task("ann", 3, AloneReason.SUSPECT), 0.0) is None
    ended = _begun(separate)[0]
    separate.end(ended, 1.0)
    assert separate.add(_task("ann", 4), 1.0) is None


def test_suspects_run_one_at_a_time_after_the_fork_server_died() -> None:
    separate = SeparateTasks(8)
    separate.add(_task("ann", 1, AloneReason.SUSPECT), 0.0)
    (first,) = _begun(separate)
    assert not separate.may_have_ended_fork_server(first)
    separate.run_one_at_a_time(1.0)
    separate.end(first, 1.0)
    delays = [separate.add(_task(user, 2, AloneReason.SUSPECT), 1.0) for user in ("ann", "bob")]
    assert delays == [None, SUSPECT_RETURN_SECONDS]
    assert separate.add(_task("cy", 3, AloneReason.ISOLATED), 1.0) is None
    second, _ = _begun(separate, 1.0)
    assert separate.may_have_ended_fork_server(second)
    separate.end(second, 2.0)
    delays = [separate.add(_task(user, 4, AloneReason.SUSPECT), 601.0) for user in ("ann", "bob")]
    assert delays == [None, None]


def _begun(separate: SeparateTasks, now: float = 0.0) -> list[SeparateTask]:
    """Begin all that may begin, and return these."""
    begun = []
    while task := separate.next():
        separate.begin(task, now)
        begun.append(task)
    return begun


def test_the_last_of_very_many_quarantined_tasks_returns_after_ten_minutes() -> None:
    separate = SeparateTasks(8)
    delays = [separate.add(_task("mallory", number), 0.0) for number in range(100_000)]
    assert delays[:2] == [None, SUSPECT_RETURN_SECONDS]
    assert delays[-1] == 600.0


def test_quarantined_tasks_of_one_user_leave_room_for_another_user() -> None:
    separate = SeparateTasks(8)
    for number in range(1000):
        separate.add(_task("mallory", number), 0.0)
    assert separate.add(_task("ann", 1), 0.0) is None
