"""What `manage.py fairque_worker` runs, says, and refuses."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.health import Health
from django_fairque.monitoring.health import worker_health
from django_fairque.monitoring.wait_explanations import reasons
from tests.stored_tasks import replace_payload

from .conftest import Workers, both_ways, eventually, is_alive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
def test_a_worker_runs_tasks_of_all_kinds(workers: Workers) -> None:
    plain, awaited, late = workers.push("add", 1, 2), workers.push("add_async", 3, 4), workers.push("later")
    failing, unwanted = workers.push("fails", "boom", max_retries=1), workers.push("unwanted")
    batch = [workers.push("index", number) for number in range(10)]
    worker = workers.start()
    ended = (TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELED)
    for task_id in [plain, awaited, late, failing, unwanted, *batch]:
        eventually(lambda task_id=task_id: workers.state(task_id) in ended)  # type: ignore[misc]
    assert workers.results([plain, awaited]) == [3, 7]
    assert workers.state(late) is TaskState.FINISHED
    assert workers.state(unwanted) is TaskState.CANCELED
    assert [attempt.error for attempt in workers.queue.history(failing)] == ["ValueError: boom"] * 2
    assert workers.results(batch) == [None if n == 7 else {"item": n, "of": 10} for n in range(10)]
    assert workers.state(batch[7]) is TaskState.FAILED
    assert worker.stop() == 0


def test_an_undecodable_task_and_an_unknown_one_do_not_hinder_others(workers: Workers) -> None:
    broken, unknown = workers.push("add", 1, 2), workers.push("no_such_task")
    replace_payload(workers.redis, broken, b"\xff{not json")
    good = workers.push("add", 3, 4)
    workers.start()
    workers.wait_for(good)
    workers.wait_for(broken, state=TaskState.FAILED)
    (entry,) = workers.queue.dlq.list().items
    assert (entry.original_task.task_id, entry.failure_type) == (broken, FailureType.POISONED)
    eventually(lambda: workers.state(unknown) is TaskState.SCHEDULED)
    assert workers.queue.get_task(unknown).retry_count == 0


def test_a_verbose_worker_logs_readable_lines(workers: Workers) -> None:
    workers.push("add", 1, 2, user="ann", task_id="one")
    workers.push("fails", "secret in here? no: boom", user="x\ny", max_retries=0)
    worker = workers.start("--burst", "-v", "2")
    assert worker.wait() == 0
    log = worker.log
    assert "queues default; users *; processes 1, concurrency 8" in log
    assert re.search(r" tasks found \(\d+\): .*\badd, .* and \d+ more; reload when code changes: off\n", log)
    assert " DEBUG   task one add of user ann finished after " in log
    assert re.search(r" INFO    process \S+, last \d s: 1 finished, 1 failed for good\n", log)
    assert " ERROR   task " in log
    assert "fails of user 'x\\ny' failed for good after " in log
    assert ": ValueError: secret in here? no: boom" in log
    assert "Traceback" in log


def test_a_worker_without_verbosity_logs_only_failures(workers: Workers) -> None:
    workers.push("add", 1, 2, user="ann", task_id="one")
    workers.push("fails", "boom", user="bob", max_retries=0)
    worker = workers.start("--burst")
    assert worker.wait() == 0
    assert "of user ann" not in worker.log
    assert "of user bob failed for good after " in worker.log
    assert re.search(r" INFO    process \S+, last \d s: 1 finished, 1 failed for good\n", worker.log)
    assert "Traceback" not in worker.log


@pytest.mark.thorough
def test_a_burst_ends_when_no_task_is_ready(workers: Workers) -> None:
    workers.push("spawns", 5)
    tomorrow = workers.push("noop", execute_after=time.time() + 86_400)
    worker = workers.start("--burst", "--processes", "2")
    assert worker.wait() == 0
    assert workers.queue.get_stats().states["finished"] == 6
    assert workers.state(tomorrow) is TaskState.SCHEDULED
    assert not worker.health_file.exists()
    assert workers.queue.workers() == []


@pytest.mark.thorough
@pytest.mark.parametrize("named", [["--queue", "default", "mail"], ["--queue", "default", "--queue", "mail"]])
def test_a_worker_serves_the_given_queues_and_users(workers: Workers, named: list[str]) -> None:
    mail = FairQueue(workers.redis, "mail")
    other = workers.push("noop", user="cid")
    mine, stolen = (workers.push("noop", user=user) for user in ("ann", "bob"))
    letter = workers.push("noop", user="ann", into=mail)
    worker = workers.start("--burst", *named, "--users", "ann", "--steal", "bob")
    assert worker.wait() == 0, worker.log
    assert workers.state(mine) is workers.state(stolen) is TaskState.FINISHED
    assert mail.get_task(letter).state is TaskState.FINISHED
    assert workers.state(other) is TaskState.QUEUED


def test_tasks_of_other_users_neither_wake_nor_block_a_worker(workers: Workers) -> None:
    workers.start("--users", "ann").wait_ready()
    workers.push("noop", user="bob")
    # The server counts a command when it ends, and waiting ends for the first time with the marker.
    eventually(lambda: workers.redis.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"] > 1)
    before = workers.redis.info("commandstats")["cmdstat_fcall"]["calls"]
    time.sleep(1.0)  # one second of an idle worker
    assert workers.redis.info("commandstats")["cmdstat_fcall"]["calls"] - before < 30
    mine = workers.push("noop", user="ann")
    eventually(lambda: workers.state(mine) is TaskState.FINISHED, 2)


@both_ways
def test_a_process_is_replaced_after_its_tasks(workers: Workers) -> None:
    ids = [workers.push("whoami") for _ in range(25)]
    worker = workers.start("--burst", "--max-tasks", "10", "--concurrency", "3")
    assert worker.wait() == 0
    assert sorted(Counter(workers.results(ids)).values()) == [5, 10, 10]
    assert all(workers.queue.history(task_id) == [] for task_id in ids)


@pytest.mark.thorough
def test_a_process_is_replaced_when_the_last_of_its_tasks_has_ended(workers: Workers) -> None:
    workers.start("--max-tasks", "2", "--concurrency", "4").wait_ready()
    long = workers.push("nap", 2.0)
    workers.wait_started()
    short, another = workers.push("whoami"), workers.push("whoami")
    pid = eventually(lambda: workers.queue.get_task(short).result)
    assert workers.state(another) is TaskState.QUEUED
    assert eventually(lambda: workers.queue.get_task(another).result) != pid
    assert workers.state(long) is TaskState.FINISHED


@pytest.mark.thorough
@both_ways
def test_a_process_that_uses_too_much_memory_is_replaced(workers: Workers) -> None:
    worker = workers.start("--max-memory", "300").wait_ready()
    (first,) = worker.children()
    assert workers.queue.get_task(workers.push("eats", 300)).state
    eventually(lambda: not is_alive(first))
    pid = workers.push("whoami")
    assert eventually(lambda: workers.queue.get_task(pid).result) != first.pid
    assert ": it uses" in worker.log
    assert "died" not in worker.log


@pytest.mark.thorough
@both_ways
def test_a_memory_limit_below_an_empty_process_is_logged_and_restarts_are_delayed(workers: Workers) -> None:
    task_id = workers.push("noop")
    worker = workers.start("--max-memory", "10")
    message = "MB before the first one, more than --max-memory (MAX_MEMORY_MB) allows, 10; set that well above"
    eventually(lambda: worker.log.count(message) >= 3)
    time.sleep(1.0)  # the pauses are 0.5 s, 1 s and 2 s
    assert worker.log.count(message) == 3
    assert "replacing worker process" not in worker.log
    assert worker.stop() == 0
    assert workers.state(task_id) is TaskState.QUEUED


def test_the_health_file_is_written_while_the_worker_lives(workers: Workers) -> None:
    worker = workers.start("--worker", "w1").wait_ready()
    first = eventually(lambda: worker.health().get("status") == "healthy" and worker.health())
    assert first["worker"].startswith("w1-")
    assert first["pid"] == worker.pid
    eventually(lambda: worker.health()["time"] > first["time"])
    assert worker_health(worker.health_file) == Health("good", [], ANY)
    assert worker.stop() == 0
    assert not worker.health_file.exists()
    assert worker_health(worker.health_file).status == "down"


@pytest.mark.thorough
def test_no_connection_or_transaction_of_a_task_reaches_the_next(workers: Workers, tmp_path: Path) -> None:
    names = [*("query", "query_async") * 10, *("leaves_open", "query") * 2]
    ids = [workers.push(name) for name in names]
    # One at a time: coroutines share one thread for their queries, and with it its connection.
    worker = workers.start("--burst", "--concurrency", "1", TEST_DATABASE=str(tmp_path / "db.sqlite3"))
    assert worker.wait() == 0
    assert workers.results(ids) == [None if name == "leaves_open" else [42, 0] for name in names]
    assert worker.log.count("a task left a transaction of database 'default' open") == 2


@pytest.mark.thorough
def test_an_outcome_and_the_next_fetch_are_one_call(workers: Workers) -> None:
    workers.queue.push_batch(Task.create("ann", 3, {"args": [], "kwargs": {}}, name="noop") for _ in range(2000))
    workers.redis.config_resetstat()
    assert workers.start("--burst").wait() == 0
    calls = workers.redis.info("commandstats")["cmdstat_fcall"]["calls"]
    assert workers.queue.get_stats().states["finished"] == 2000
    assert calls < 200  # one call for 2 × 8 tasks at first, then for some 50; sweeps and heartbeats beside


def test_a_wrong_option_ends_the_worker_with_one_line(workers: Workers) -> None:
    worker = workers.start("--queue", "mial")
    assert worker.wait() != 0
    (line,) = worker.log.strip().splitlines()
    assert "did you mean mail" in line


@pytest.mark.thorough
def test_a_name_that_no_worker_knows_is_reported_first(workers: Workers) -> None:
    worker = workers.start("--processes", "2").wait_ready(2)
    task_id = workers.push("shop.no_such_task")
    eventually(lambda: workers.state(task_id) is TaskState.SCHEDULED)
    first = (
        "no worker knows a task named shop.no_such_task: deploy its code, or import its module where the workers start"
    )
    eventually(lambda: workers.queue.health().reasons[:1] == [first])
    assert workers.queue.health().status == "degraded"
    kinds = [(reason.kind, reason.text) for reason in reasons(workers.queue, task_id)]
    assert kinds[0][0] == "unknown_name"
    assert kinds[0][1].startswith("No worker knows a task named shop.no_such_task: deploy its code")
    others = [workers.push("shop.no_such_task") for _ in range(20)]
    eventually(lambda: all(workers.state(other) is TaskState.SCHEDULED for other in others))
    warnings = [line for line in worker.log.splitlines() if " WARNING " in line and "can't run: no task named" in line]
    assert 1 <= len(warnings) <= 2  # each process logs the warning once


@pytest.mark.thorough
@both_ways
def test_a_project_that_can_not_be_loaded_ends_the_worker(workers: Workers, tmp_path: Path) -> None:
    a_thread = tmp_path / "more_tasks.py"  # so that the fork server is not a copy of the supervisor, which could begin
    a_thread.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()")
    worker = workers.start(TEST_BREAK_CHILDREN="1", TEST_MORE_TASKS=str(a_thread))
    assert worker.wait() == 1
    assert worker.log.count("RuntimeError: this module can't be imported in a worker's child") == 3
    assert "could not begin" in worker.log
    assert "3 worker processes in a row could not begin; giving up" in worker.log
