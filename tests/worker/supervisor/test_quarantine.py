"""A task that was running when its process died runs alone the next time: another death has one cause, and no other victim."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.worker.fetching.fetch_planner import MAX_FETCH_LEASES
from tests.worker.conftest import ROOT, both_ways, eventually, is_alive, recorded
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server
    from tests.worker.conftest import Push, StartWorker


MAX_SHARED_DEATHS = 5
"""Processes that a user's tasks end before two of them have crashed alone."""
MANY = 2000
"""Tasks of a user that must all run alone."""


def starts(redis: Redis) -> Counter[str]:
    return Counter(task_id for task_id, _ in recorded(redis, STARTED))


@pytest.mark.slow
@both_ways
def test_only_the_killer_is_poisoned_and_each_innocent_starts_once_more(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "4")
    innocents = [push("nap", 3.0, user=user) for user in ("ann", "bob", "cy")]
    eventually(lambda: len(recorded(redis, STARTED)) == 3, 60)
    killer = push("dies", user="mallory", max_retries=0)
    eventually(lambda: queue.get_task(killer).state is TaskState.FAILED, 60)
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in innocents), 60)
    (entry,) = queue.dlq.list().items
    assert (entry.original_task.task_id, entry.failure_type) == (killer, FailureType.POISONED)
    counts = starts(redis)
    assert {each: counts[each] for each in innocents} == dict.fromkeys(innocents, 2)
    assert counts[killer] == 5
    assert worker.stop() == 0


def test_suspects_run_at_the_same_time_in_separate_processes(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "8").wait_ready()
    end = tmp_path / "end"
    ids = [push("waits_for", str(end), user=f"user{number % 3}") for number in range(7)]
    eventually(lambda: len(recorded(redis, STARTED)) == 7)
    killer = push("dies", user="mallory", max_retries=0)
    began = [*ids, *ids, *[killer] * 5]
    eventually(lambda: sorted(task_id for task_id, _ in recorded(redis, STARTED)) == sorted(began), 60)
    eventually(lambda: queue.get_task(killer).state is TaskState.FAILED)
    assert [queue.get_task(each).state for each in ids] == [TaskState.STARTED] * 7  # all run, and none has ended
    alone = {pid for task_id, pid in recorded(redis, STARTED)[8:] if task_id in ids}
    assert len(alone) == 7
    assert not alone & {each.pid for each in worker.children()}
    # Each takes a slot, so one is left.
    others = [Task.create(user, 3, {"args": [str(end)], "kwargs": {}}, name="waits_for") for user in ("ann", "bob")]
    queue.push_batch(others)
    eventually(lambda: len(recorded(redis, STARTED)) == len(began) + 1)
    assert {queue.get_task(each.task_id).state for each in others} == {TaskState.STARTED, TaskState.QUEUED}
    end.touch()
    eventually(lambda: len(recorded(redis, ENDED)) == 9)
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in ids))
    for task_id in ids:
        assert [attempt.kind for attempt in queue.history(task_id)] == ["crashed"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_the_death_of_the_fork_server_is_charged_to_one_task(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    """It ends all processes, also those of suspects, so these run one after the other from then on."""
    worker = start_worker(
        *("--processes", "1", "--concurrency", "4"),
        FAIRQUE_QUEUE__MAX_DELIVERIES="2",
        FAIRQUE_WORKER__START_METHOD="forkserver",
    ).wait_ready()
    innocents = [push("nap", 2.0, user=f"user{number}") for number in range(2)]
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    worker.children()[0].kill()
    eventually(lambda: len(recorded(redis, STARTED)) == 4)
    killer = push("ends_parent", user="mallory", max_retries=0)
    eventually(lambda: queue.get_task(killer).state is TaskState.FAILED, 60)
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in innocents), 60)
    assert [letter.original_task.task_id for letter in queue.dlq.list().items] == [killer]


def test_other_tasks_go_on_while_a_suspect_runs(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "2", FAIRQUE_WORKER__LEASE_SECONDS="3").wait_ready()
    suspect = push("nap", 60.0, user="mallory", timeout=90)
    eventually(lambda: len(recorded(redis, STARTED)) == 1)
    worker.children()[0].kill()
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    others = [push("add", n, 1, user="ann") for n in range(20)]
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in others))
    assert queue.get_task(suspect).state is TaskState.STARTED
    assert queue.cancel(suspect)
    alone = psutil.Process(recorded(redis, STARTED)[1][1])
    eventually(lambda: not is_alive(alone))


def test_a_suspect_that_outlived_its_process_is_none_any_more(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "2").wait_ready()
    task_id = push("nap_then_fail", 0.5, max_retries=1)
    eventually(lambda: len(recorded(redis, STARTED)) == 1)
    worker.children()[0].kill()
    eventually(lambda: queue.get_task(task_id).state is TaskState.FAILED)
    pids = [pid for _, pid in recorded(redis, STARTED)]
    assert len(pids) == 3
    eventually(worker.children)
    assert pids[2] == worker.children()[0].pid  # the retry ran with all others
    assert worker.log.count("runs alone") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nap_async", "nap_together"])
def test_coroutines_and_batch_tasks_run_alone_too(
    queue: FairQueue, push: Push, start_worker: StartWorker, name: str
) -> None:
    waiting = [push(name, 3.0) for _ in range(2)]
    worker = start_worker("--processes", "1", "--concurrency", "4").wait_ready()
    eventually(lambda: all(queue.get_task(each).state is TaskState.STARTED for each in waiting))
    eventually(lambda: any(int(each["running"]) for each in worker.health()["processes"]))
    worker.children()[0].kill()
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in waiting), 60)


def test_a_burst_waits_for_its_suspects(queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
    task_id = push("dies", user="mallory", max_retries=0)
    innocent = push("nap", 0.2, user="ann")
    worker = start_worker("--processes", "1", "--concurrency", "4", "--burst", FAIRQUE_QUEUE__MAX_DELIVERIES="2")
    assert worker.wait(60) == 0
    assert queue.get_task(innocent).state is TaskState.FINISHED
    assert queue.get_task(task_id).state is TaskState.FAILED


A_SLOW_FIRST_RETURN = """
import time
from django.core.management import execute_from_command_line
from django_fairque.worker.leases.lease_renewal import LeaseRenewal
give_back = LeaseRenewal._give_back
def slow(self, job):
    LeaseRenewal._give_back = give_back
    time.sleep(2.0)
    give_back(self, job)
LeaseRenewal._give_back = slow
execute_from_command_line(["manage.py", "fairque_worker", "--burst", "--processes", "1", "--max-memory", "0"])
"""


def test_a_burst_waits_until_the_tasks_of_a_dead_process_are_ready_again(
    server: Server, queue: FairQueue, push: Push
) -> None:
    push("dies", user="mallory")
    innocents = [push("nap", 0.2, user=user) for user in ("ann", "bob")]
    environment = {"DJANGO_SETTINGS_MODULE": "tests.worker.project.settings", "TEST_SERVER": server.url}
    subprocess.run(
        [sys.executable, "-c", A_SLOW_FIRST_RETURN], cwd=ROOT, env={**os.environ, **environment}, timeout=60, check=True
    )
    assert [queue.get_task(each).state for each in innocents] == [TaskState.FINISHED] * 2


def test_a_worker_that_stops_gives_its_suspect_back_when_the_time_is_over(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "1", FAIRQUE_WORKER__SHUTDOWN_TIMEOUT="0.5").wait_ready()
    task_id = push("nap", 60.0, timeout=90)
    eventually(lambda: len(recorded(redis, STARTED)) == 1)
    worker.children()[0].kill()
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    assert worker.stop() == 0
    assert queue.get_task(task_id).state is TaskState.QUEUED
    assert [attempt.kind for attempt in queue.history(task_id)] == ["crashed", "released"]


def test_a_suspect_has_its_hard_limit(queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker(
        "--processes", "1", "--concurrency", "1", FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.3"
    ).wait_ready()
    task_id = push("deaf", 30.0, timeout=1, max_retries=0)
    eventually(lambda: len(recorded(redis, STARTED)) == 1)
    worker.children()[0].kill()
    eventually(lambda: queue.get_task(task_id).state is TaskState.FAILED)
    assert queue.dlq.list().items[0].failure_type is FailureType.FAILED
    assert "time limit" in queue.dlq.list().items[0].reason


def test_a_user_whose_tasks_all_crash_ends_few_processes_of_others(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "2").wait_ready()
    tasks = [Task.create("mallory", 3, {"args": [], "kwargs": {}}, name="dies", max_deliveries=2) for _ in range(40)]
    queue.push_batch(tasks)
    eventually(lambda: queue.get_stats().states["failed"] == len(tasks), 60)
    shared = re.findall(r"worker process \S+\.0\.\d+ died", worker.log)
    assert 1 <= len(shared) <= MAX_SHARED_DEATHS
    innocent = push("add", 1, 2, user="ann")
    eventually(lambda: queue.get_task(innocent).state is TaskState.FINISHED)


class TestHardLimits:
    def test_a_task_that_blocks_restarts_its_neighbors_once(
        self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
    ) -> None:
        worker = start_worker(
            "--processes", "1", "--concurrency", "4", FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.2"
        ).wait_ready()
        innocents = [push("nap", 4.0, user=user) for user in ("ann", "bob")]
        eventually(lambda: len(recorded(redis, STARTED)) == 2)
        blocking = [push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=1)]
        eventually(lambda: "ran for" in worker.log)
        blocking += [push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=0) for _ in range(2)]
        eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in innocents), 60)
        eventually(lambda: all(queue.get_task(each).state is TaskState.FAILED for each in blocking), 60)
        counts = starts(redis)
        assert {each: counts[each] for each in innocents} == dict.fromkeys(innocents, 2)
        assert {queue.get_task(each).given_back for each in innocents} == {1}
        assert [counts[each] for each in blocking] == [2, 1, 1]
        assert all(letter.failure_type is FailureType.FAILED for letter in queue.dlq.list().items)

    def test_a_worker_holds_few_of_the_many_tasks_that_must_run_alone(
        self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
    ) -> None:
        start_worker("--processes", "1", "--concurrency", "4", FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.2").wait_ready()
        first = push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=0)
        eventually(lambda: queue.get_task(first).state is TaskState.FAILED)
        payload = {"args": [0.0], "kwargs": {}}
        queue.push_batch([Task.create("mallory", 3, payload, name="deaf", timeout=30) for _ in range(MANY)])
        held, waits = [], []

        def are_put_off() -> bool:
            task_id = push("add", 1, 2, user="ann")
            task = eventually(lambda: (task := queue.get_task(task_id)).state is TaskState.FINISHED and task)
            waits.append(task.started_at - task.created_at)
            states = queue.get_stats().states
            held.append(states["started"])
            return states["queued"] == 0

        eventually(are_put_off, 60)
        assert max(held) <= MAX_FETCH_LEASES + 4 + 1
        assert median(waits) < 0.5  # the server and the worker are busy, but not with one user only


class TestIsolated:
    def test_each_run_has_a_process_of_its_own(
        self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
    ) -> None:
        worker = start_worker("--processes", "1", "--concurrency", "2").wait_ready()
        ids = [push("isolated_nap", 0.3, user=user) for user in ("ann", "bob", "cy")]
        eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in ids), 60)
        pids = {pid for _, pid in recorded(redis, STARTED)}
        assert len(pids) == 3
        assert worker.children()[0].pid not in pids
        assert worker.stop() == 0

    def test_it_goes_on_when_the_process_that_fetched_it_dies(
        self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
    ) -> None:
        worker = start_worker("--processes", "1", "--concurrency", "2").wait_ready()
        task_id = push("isolated_nap", 2.0)
        eventually(lambda: recorded(redis, STARTED))
        worker.children()[0].kill()
        eventually(lambda: queue.get_task(task_id).state is TaskState.FINISHED)
        assert len(recorded(redis, STARTED)) == 1
        assert queue.history(task_id) == []

    def test_it_takes_a_slot(self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
        start_worker("--processes", "1", "--concurrency", "1").wait_ready()
        first = push("isolated_nap", 1.0, user="ann")
        eventually(lambda: recorded(redis, STARTED))
        second = push("nap", 0.01, user="bob")
        eventually(lambda: queue.get_task(second).state is TaskState.FINISHED)
        assert [task_id for task_id, _ in recorded(redis, ENDED)] == [first, second]

    @pytest.mark.parametrize("name", ["hungry", "greedy"])
    def test_more_memory_than_allowed_ends_only_that_task(
        self, queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, name: str
    ) -> None:
        worker = start_worker("--processes", "1", "--concurrency", "4").wait_ready()
        innocent = push("nap", 3.0, user="ann")
        eventually(lambda: len(recorded(redis, STARTED)) == 1)
        task_id = push(name, user="mallory", max_retries=0)
        eventually(lambda: queue.get_task(task_id).state is TaskState.FAILED, 60)
        (letter,) = queue.dlq.list().items
        assert (letter.original_task.task_id, letter.failure_type) == (task_id, FailureType.FAILED)
        assert ("TaskMemoryError" if name == "hungry" else "MemoryError") in letter.reason
        eventually(lambda: queue.get_task(innocent).state is TaskState.FINISHED)
        assert starts(redis)[innocent] == 1
        assert len(worker.children()) == 1
