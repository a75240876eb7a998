"""A task that was running when its process died runs alone the next time: another death has one cause, and no other victim."""

from __future__ import annotations

import re
import sys
from statistics import median
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.worker.fetching.fetch_planner import MAX_FETCH_LEASES
from tests.worker.conftest import Workers, both_ways, eventually, is_alive

if TYPE_CHECKING:
    from pathlib import Path


MAX_SHARED_DEATHS = 5
"""Processes that a user's tasks end before two of them have crashed alone."""
MANY = 2000
"""Tasks of a user that must all run alone."""


@pytest.mark.slow
@both_ways
def test_only_the_task_that_kills_its_process_is_poisoned_and_the_others_start_once_more(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "4")
    innocents = [workers.push("nap", 3.0, user=user) for user in ("ann", "bob", "cy")]
    workers.wait_started(3)
    killer = workers.push("dies", user="mallory", max_retries=0)
    workers.wait_for(killer, state=TaskState.FAILED)
    workers.wait_for(*innocents)
    (entry,) = workers.queue.dlq.list().items
    assert (entry.original_task.task_id, entry.failure_type) == (killer, FailureType.POISONED)
    counts = workers.starts()
    assert {innocent: counts[innocent] for innocent in innocents} == dict.fromkeys(innocents, 2)
    assert counts[killer] == 5
    assert worker.stop() == 0


@pytest.mark.thorough
def test_suspects_run_at_the_same_time_in_separate_processes(workers: Workers, tmp_path: Path) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "8").wait_ready()
    end = tmp_path / "end"
    ids = [workers.push("waits_for", str(end), user=f"user{number % 3}") for number in range(7)]
    workers.wait_started(7)
    killer = workers.push("dies", user="mallory", max_retries=0)
    began = [*ids, *ids, *[killer] * 5]
    eventually(lambda: sorted(task_id for task_id, _ in workers.started()) == sorted(began), 60)
    workers.wait_for(killer, state=TaskState.FAILED)
    assert workers.states(ids) == {TaskState.STARTED}  # all run, and none has ended
    alone = {pid for task_id, pid in workers.started()[8:] if task_id in ids}
    assert len(alone) == 7
    assert not alone & {child.pid for child in worker.children()}
    # Each takes a slot, so one is left.
    others = [Task.create(user, 3, {"args": [str(end)], "kwargs": {}}, name="waits_for") for user in ("ann", "bob")]
    workers.queue.push_batch(others)
    eventually(lambda: len(workers.started()) == len(began) + 1)
    assert {workers.state(other.task_id) for other in others} == {TaskState.STARTED, TaskState.QUEUED}
    end.touch()
    workers.wait_ended(9)
    workers.wait_for(*ids)
    for task_id in ids:
        assert workers.kinds(task_id) == ["crashed"]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
def test_the_death_of_the_fork_server_is_blamed_on_one_task(workers: Workers) -> None:
    """The death ends all processes, also those of suspects, so suspects run one after the other from then on."""
    worker = workers.start(
        *("--processes", "1", "--concurrency", "4"), FAIRQUE_QUEUE__MAX_DELIVERIES="2", start_method="forkserver"
    ).wait_ready()
    innocents = [workers.push("nap", 2.0, user=f"user{number}") for number in range(2)]
    workers.wait_started(2)
    worker.children()[0].kill()
    workers.wait_started(4)
    killer = workers.push("ends_parent", user="mallory", max_retries=0)
    workers.wait_for(killer, state=TaskState.FAILED)
    workers.wait_for(*innocents)
    assert [letter.original_task.task_id for letter in workers.queue.dlq.list().items] == [killer]


def test_other_tasks_run_while_a_suspect_runs_alone(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "2", lease_seconds="3").wait_ready()
    suspect = workers.push("nap", 60.0, user="mallory", timeout=90)
    workers.wait_started(1)
    worker.children()[0].kill()
    workers.wait_started(2)
    others = [workers.push("add", n, 1, user="ann") for n in range(20)]
    workers.wait_for(*others)
    assert workers.state(suspect) is TaskState.STARTED
    assert workers.queue.cancel(suspect)
    alone = psutil.Process(workers.started()[1][1])
    eventually(lambda: not is_alive(alone))


def test_a_suspect_that_did_not_end_its_process_is_cleared(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "2").wait_ready()
    task_id = workers.push("nap_then_fail", 0.5, max_retries=1)
    workers.wait_started(1)
    worker.children()[0].kill()
    workers.wait_for(task_id, state=TaskState.FAILED)
    pids = [pid for _, pid in workers.started()]
    assert len(pids) == 3
    eventually(worker.children)
    assert pids[2] == worker.children()[0].pid  # the retry ran with all others
    assert worker.log.count("runs alone") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nap_async", "nap_together"])
def test_suspected_coroutines_and_batches_run_alone(workers: Workers, name: str) -> None:
    waiting = [workers.push(name, 3.0) for _ in range(2)]
    worker = workers.start("--processes", "1", "--concurrency", "4").wait_ready()
    eventually(lambda: all(workers.state(task_id) is TaskState.STARTED for task_id in waiting))
    eventually(lambda: any(int(process["running"]) for process in worker.health()["processes"]))
    worker.children()[0].kill()
    workers.wait_for(*waiting)


@pytest.mark.thorough
def test_a_burst_waits_for_its_suspects(workers: Workers) -> None:
    task_id = workers.push("dies", user="mallory", max_retries=0)
    innocent = workers.push("nap", 0.2, user="ann")
    worker = workers.start("--processes", "1", "--concurrency", "4", "--burst", FAIRQUE_QUEUE__MAX_DELIVERIES="2")
    assert worker.wait(60) == 0
    assert workers.state(innocent) is TaskState.FINISHED
    assert workers.state(task_id) is TaskState.FAILED


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


@pytest.mark.thorough
def test_a_burst_waits_until_the_tasks_of_a_dead_process_are_ready_again(workers: Workers) -> None:
    workers.push("dies", user="mallory")
    innocents = [workers.push("nap", 0.2, user=user) for user in ("ann", "bob")]
    assert workers.start_program("-c", A_SLOW_FIRST_RETURN).wait() == 0
    assert workers.states(innocents) == {TaskState.FINISHED}


def test_a_stopping_worker_returns_its_suspect_after_the_shutdown_timeout(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "1", shutdown_timeout="0.5").wait_ready()
    task_id = workers.push("nap", 60.0, timeout=90)
    workers.wait_started(1)
    worker.children()[0].kill()
    workers.wait_started(2)
    assert worker.stop() == 0
    assert workers.state(task_id) is TaskState.QUEUED
    assert workers.kinds(task_id) == ["crashed", "released"]


def test_a_suspect_has_its_hard_limit(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "1", hard_timeout_grace="0.3").wait_ready()
    task_id = workers.push("deaf", 30.0, timeout=1, max_retries=0)
    workers.wait_started(1)
    worker.children()[0].kill()
    workers.wait_for(task_id, state=TaskState.FAILED)
    assert workers.queue.dlq.list().items[0].failure_type is FailureType.FAILED
    assert "time limit" in workers.queue.dlq.list().items[0].reason


@pytest.mark.thorough
def test_a_user_whose_tasks_all_crash_ends_few_processes_of_others(workers: Workers) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "2").wait_ready()
    tasks = [Task.create("mallory", 3, {"args": [], "kwargs": {}}, name="dies", max_deliveries=2) for _ in range(40)]
    workers.queue.push_batch(tasks)
    eventually(lambda: workers.queue.get_stats().states["failed"] == len(tasks), 60)
    shared = re.findall(r"worker process \S+\.0\.\d+ died", worker.log)
    assert 1 <= len(shared) <= MAX_SHARED_DEATHS
    workers.run("add", 1, 2, user="ann")


class TestHardLimits:
    @pytest.mark.thorough
    def test_a_task_that_blocks_restarts_its_neighbors_once(self, workers: Workers) -> None:
        worker = workers.start("--processes", "1", "--concurrency", "4", hard_timeout_grace="0.2").wait_ready()
        innocents = [workers.push("nap", 4.0, user=user) for user in ("ann", "bob")]
        workers.wait_started(2)
        blocking = [workers.push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=1)]
        eventually(lambda: "ran for" in worker.log)
        blocking += [workers.push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=0) for _ in range(2)]
        workers.wait_for(*innocents)
        workers.wait_for(*blocking, state=TaskState.FAILED)
        counts = workers.starts()
        assert {innocent: counts[innocent] for innocent in innocents} == dict.fromkeys(innocents, 2)
        assert {workers.queue.get_task(innocent).given_back for innocent in innocents} == {1}
        assert [counts[task_id] for task_id in blocking] == [2, 1, 1]
        assert all(letter.failure_type is FailureType.FAILED for letter in workers.queue.dlq.list().items)

    @pytest.mark.thorough
    def test_a_worker_holds_few_of_the_many_tasks_that_must_run_alone(self, workers: Workers) -> None:
        workers.start("--processes", "1", "--concurrency", "4", hard_timeout_grace="0.2").wait_ready()
        first = workers.push("deaf", 30.0, user="mallory", timeout=0.5, max_retries=0)
        workers.wait_for(first, state=TaskState.FAILED)
        payload = {"args": [0.0], "kwargs": {}}
        workers.queue.push_batch([Task.create("mallory", 3, payload, name="deaf", timeout=30) for _ in range(MANY)])
        held, waits = [], []

        def are_put_off() -> bool:
            task_id = workers.push("add", 1, 2, user="ann")
            task = eventually(lambda: (task := workers.queue.get_task(task_id)).state is TaskState.FINISHED and task)
            waits.append(task.started_at - task.created_at)
            states = workers.queue.get_stats().states
            held.append(states["started"])
            return states["queued"] == 0

        eventually(are_put_off, 60)
        assert max(held) <= MAX_FETCH_LEASES + 4 + 1
        assert median(waits) < 0.5  # the server and the worker are busy, but not with one user only


class TestIsolated:
    def test_each_run_of_an_isolated_task_has_its_own_process(self, workers: Workers) -> None:
        worker = workers.start("--processes", "1", "--concurrency", "2").wait_ready()
        ids = [workers.push("isolated_nap", 0.3, user=user) for user in ("ann", "bob", "cy")]
        workers.wait_for(*ids)
        pids = {pid for _, pid in workers.started()}
        assert len(pids) == 3
        assert worker.children()[0].pid not in pids
        assert worker.stop() == 0

    def test_an_isolated_task_survives_the_death_of_its_fetching_process(self, workers: Workers) -> None:
        worker = workers.start("--processes", "1", "--concurrency", "2").wait_ready()
        task_id = workers.push("isolated_nap", 2.0)
        workers.wait_started()
        worker.children()[0].kill()
        workers.wait_for(task_id)
        assert len(workers.started()) == 1
        assert workers.queue.history(task_id) == []

    def test_an_isolated_task_takes_a_slot(self, workers: Workers) -> None:
        workers.start("--processes", "1", "--concurrency", "1").wait_ready()
        first = workers.push("isolated_nap", 1.0, user="ann")
        workers.wait_started()
        second = workers.run("nap", 0.01, user="bob")
        assert [task_id for task_id, _ in workers.ended()] == [first, second]

    @pytest.mark.thorough
    @pytest.mark.parametrize("name", ["hungry", "greedy"])
    def test_only_the_isolated_task_with_too_much_memory_ends(self, workers: Workers, name: str) -> None:
        worker = workers.start("--processes", "1", "--concurrency", "4").wait_ready()
        innocent = workers.push("nap", 3.0, user="ann")
        workers.wait_started(1)
        task_id = workers.push(name, user="mallory", max_retries=0)
        workers.wait_for(task_id, state=TaskState.FAILED)
        (letter,) = workers.queue.dlq.list().items
        assert (letter.original_task.task_id, letter.failure_type) == (task_id, FailureType.FAILED)
        assert ("TaskMemoryError" if name == "hungry" else "MemoryError") in letter.reason
        workers.wait_for(innocent)
        assert workers.starts()[innocent] == 1
        assert len(worker.children()) == 1
