"""Users with short tasks come to a worker that has run long ones (docs/explanation/fairness.md)."""

from __future__ import annotations

from collections import Counter

import pytest

from django_fairque.engine.model.task import Task
from tests.worker.conftest import Workers, eventually

LONG, SHORT = 1.0, 0.05
USERS = 50


def nap(user: str, seconds: float) -> Task:
    return Task.create(user, 3, {"args": [seconds], "kwargs": {}}, name="nap")


@pytest.mark.thorough
def test_users_with_short_tasks_have_equal_turns_after_long_tasks(workers: Workers) -> None:
    """By time: the expected cost of a first task is twenty times the real one."""
    workers.start("--concurrency", "4").wait_ready()
    workers.queue.push_batch([nap("before", LONG) for _ in range(8)])
    workers.wait_ended(8)
    tasks = [nap(f"b{number}", SHORT) for number in range(USERS) for _ in range(20)]
    pushed = workers.queue.push_batch(tasks)
    users = {result.task_id: task.user_id for task, result in zip(tasks, pushed, strict=True)}
    eventually(lambda: len(workers.started()) >= 8 + 3 * USERS)
    order = [users[task_id] for task_id, _ in workers.started()[8 : 8 + 3 * USERS]]
    # Some tasks lie ahead in the worker, and wrong guesses are corrected when a task has ended.
    assert len(set(order[: USERS + 15])) == USERS
    assert max(Counter(order).values()) <= 6
