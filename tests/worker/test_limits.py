"""Workers run tasks with limits by key."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import STARTED, Workers, eventually

API = [TaskLimit("api", 2)]


def test_two_workers_never_exceed_a_limit_and_use_all_of_it(workers: Workers) -> None:
    for _ in range(2):
        workers.start("--concurrency", "4")
    ids = [workers.push("call_api", user=user, limits=API) for user in "abcd" for _ in range(10)]
    workers.wait_for(*ids)
    entries: Any = workers.redis.lrange(STARTED, 0, -1)
    assert max(int(line.decode().split(" ")[2]) for line in entries) == 2
    assert workers.queue.limits() == []


@pytest.mark.parametrize("name", ["call_api", "call_api_alone"])
def test_a_task_closes_its_limit_for_all_workers(workers: Workers, name: str) -> None:
    workers.start().wait_ready()
    workers.run(name, 1, limits=API)
    assert workers.queue.limit("api").stats().is_closed
    waiting = workers.push(name, limits=API)
    workers.run("noop")
    assert workers.state(waiting) is TaskState.QUEUED
    workers.queue.limit("api").open()
    workers.wait_for(waiting)
    eventually(lambda: workers.queue.limits() == [])
