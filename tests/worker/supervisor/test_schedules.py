"""Schedules run at their run times, whatever the pause between two sweeps is."""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import MAX_SWEEP_INTERVAL_SECONDS
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import WorkerProcess

COUNT = 4
"""Run times that are waited for, in seconds as well."""


def fired(queue: FairQueue) -> dict[float, float]:
    """The run times for which schedules have pushed tasks, and by how many seconds each task was late."""
    tasks = [task for task in queue.tasks("finished", limit=1000).items if task.task_id.startswith("schedule:")]
    times = {int(task.task_id.rpartition(":")[2]) / 1e6: task.created_at for task in tasks}
    return {run_time: created - run_time for run_time, created in times.items()}


def started_at(queue: FairQueue, name: str) -> float | None:
    return queue.get_task(name).started_at


def check_it_runs_every_second(queue: FairQueue) -> None:
    eventually(lambda: fired(queue), 2 * MAX_SWEEP_INTERVAL_SECONDS + 10)  # a new schedule is noticed by a sweep
    eventually(lambda: min(fired(queue).values()) < 1, 30)  # run times that passed before it was noticed are late
    last = max(fired(queue))
    eventually(lambda: max(fired(queue)) >= last + COUNT)
    late = [seconds for run_time, seconds in fired(queue).items() if run_time > last]
    assert len(late) >= COUNT
    assert statistics.median(late) < 0.5, late


@pytest.mark.slow
def test_a_schedule_of_every_second_runs_every_second(workers: Workers) -> None:
    worker = workers.start(FAIRQUE_QUEUE__SWEEP_INTERVAL="3600").wait_ready()
    workers.queue.schedules.add("often", task=Task.create("ann", 3, {"args": [], "kwargs": {}}, name="noop"), every=1)
    check_it_runs_every_second(workers.queue)
    assert f"sweep_interval is reduced from 3600 to {MAX_SWEEP_INTERVAL_SECONDS:g} seconds" in worker.log


def test_delayed_tasks_do_not_wait_for_a_sweep(workers: Workers) -> None:
    workers.start(FAIRQUE_QUEUE__SWEEP_INTERVAL="3600").wait_ready()
    late = []
    for _ in range(4):
        due = time.time() + 0.3
        name = workers.push("noop", execute_after=due)
        late.append(eventually(partial(started_at, workers.queue, name)) - due)
    assert max(late) < MAX_SWEEP_INTERVAL_SECONDS / 2


def test_a_task_whose_lease_ended_starts_after_at_most_one_sweep(workers: Workers) -> None:
    name = workers.push("noop")
    assert workers.queue.pop("another", lease=1.0) is not None
    workers.start(FAIRQUE_QUEUE__SWEEP_INTERVAL="3600").wait_ready()
    eventually(lambda: workers.state(name) is TaskState.FINISHED, 1.5 * MAX_SWEEP_INTERVAL_SECONDS + 5)


@pytest.mark.thorough
def test_the_declared_schedules_are_those_of_the_newest_deployment(workers: Workers) -> None:
    def declared() -> list[str]:
        return [schedule.name for schedule in workers.queue.schedules.list()]

    def start(schedule: str, version: str) -> WorkerProcess:
        return workers.start(TEST_SCHEDULE=schedule, FAIRQUE_CODE_VERSION=version).wait_ready()

    old = start("noop", "1")
    assert declared() == ["noop"]
    new = start("tidy_up", "2")
    assert declared() == ["tidy_up"]
    assert start("noop", "1").stop() == 0
    restarted = start("noop", "1")
    eventually(lambda: "version 2 was deployed later" in restarted.log)
    assert declared() == ["tidy_up"]
    assert new.stop() == 0
    eventually(lambda: declared() == ["noop"])
    eventually(lambda: "are in force, of version 1" in old.log + restarted.log)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_a_worker_with_free_slots_runs_one_task_of_a_schedule_at_a_time(workers: Workers, overlap: str) -> None:
    workers.start("--concurrency", "4").wait_ready()
    nap = Task.create("ann", 3, {"args": [1.5], "kwargs": {}}, name="nap")
    workers.queue.schedules.add("naps", task=nap, every=1, overlap=overlap)
    eventually(lambda: len(workers.queue.tasks("finished", limit=9).items) >= 3, 2 * MAX_SWEEP_INTERVAL_SECONDS + 20)
    ended = sorted(workers.queue.tasks("finished", limit=9).items, key=lambda task: task.started_at or 0)
    for former, task in pairwise(ended):
        assert (task.started_at or 0) >= (former.ended_at or 0)
    assert "skipped" in {run.happened for run in workers.queue.schedules.get("naps").runs}
