"""What `manage.py fairque_worker` runs, says, and refuses."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from unittest.mock import ANY

import pytest
from django.core.management import CommandError, call_command

from django_fairque.conf import set_overrides
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.health import Health
from django_fairque.monitoring.health import worker_health
from tests.stored_tasks import replace_payload

from .conftest import both_ways, eventually, is_alive, recorded
from .project.tasks import STARTED

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

    from .conftest import Push, StartWorker


def test_a_worker_runs_tasks_of_all_kinds(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    plain, awaited, late = push("add", 1, 2), push("add_async", 3, 4), push("later")
    failing, unwanted = push("fails", "boom", max_retries=1), push("unwanted")
    batch = [push("index", number) for number in range(10)]
    worker = start_worker()
    ended = (TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELED)
    for task_id in [plain, awaited, late, failing, unwanted, *batch]:
        eventually(lambda task_id=task_id: queue.get_task(task_id).state in ended)  # type: ignore[misc]
    assert [queue.get_task(task_id).result for task_id in (plain, awaited)] == [3, 7]
    assert queue.get_task(late).state is TaskState.FINISHED
    assert queue.get_task(unwanted).state is TaskState.CANCELED
    assert [attempt.error for attempt in queue.history(failing)] == ["ValueError: boom"] * 2
    results = [queue.get_task(task_id).result for task_id in batch]
    assert results == [None if n == 7 else {"item": n, "of": 10} for n in range(10)]
    assert queue.get_task(batch[7]).state is TaskState.FAILED
    assert worker.stop() == 0


def test_an_undecodable_task_and_an_unknown_one_harm_nobody(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    broken, unknown = push("add", 1, 2), push("no_such_task")
    replace_payload(redis, broken, b"\xff{not json")
    good = push("add", 3, 4)
    start_worker()
    eventually(lambda: queue.get_task(good).state is TaskState.FINISHED)
    eventually(lambda: queue.get_task(broken).state is TaskState.FAILED)
    (entry,) = queue.dlq.list().items
    assert (entry.original_task.task_id, entry.failure_type) == (broken, FailureType.POISONED)
    eventually(lambda: queue.get_task(unknown).state is TaskState.SCHEDULED)
    assert queue.get_task(unknown).retry_count == 0


def test_it_says_what_it_does_in_lines_a_person_can_read(push: Push, start_worker: StartWorker) -> None:
    push("add", 1, 2, user="ann", task_id="one")
    push("fails", "secret in here? no: boom", user="x\ny", max_retries=0)
    worker = start_worker("--burst", "-v", "2")
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


def test_without_verbosity_only_failures_have_lines(push: Push, start_worker: StartWorker) -> None:
    push("add", 1, 2, user="ann", task_id="one")
    push("fails", "boom", user="bob", max_retries=0)
    worker = start_worker("--burst")
    assert worker.wait() == 0
    assert "of user ann" not in worker.log
    assert "of user bob failed for good after " in worker.log
    assert re.search(r" INFO    process \S+, last \d s: 1 finished, 1 failed for good\n", worker.log)
    assert "Traceback" not in worker.log


def test_a_burst_ends_when_nothing_is_left_to_do_now(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    push("spawns", 5)
    tomorrow = push("noop", execute_after=time.time() + 86_400)
    worker = start_worker("--burst", "--processes", "2")
    assert worker.wait() == 0
    assert queue.get_stats().states["finished"] == 6
    assert queue.get_task(tomorrow).state is TaskState.SCHEDULED
    assert not worker.health_file.exists()
    assert queue.workers() == []


@pytest.mark.parametrize("named", [["--queue", "default", "mail"], ["--queue", "default", "--queue", "mail"]])
def test_it_serves_the_queues_and_users_it_is_given(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, named: list[str]
) -> None:
    mail = FairQueue(redis, "mail")
    other = push("noop", user="cid")
    mine, stolen, letter = push("noop", user="ann"), push("noop", user="bob"), push("noop", user="ann", into=mail)
    worker = start_worker("--burst", *named, "--users", "ann", "--steal", "bob")
    assert worker.wait() == 0, worker.log
    assert queue.get_task(mine).state is queue.get_task(stolen).state is TaskState.FINISHED
    assert mail.get_task(letter).state is TaskState.FINISHED
    assert queue.get_task(other).state is TaskState.QUEUED


def test_a_task_for_others_makes_a_worker_for_some_neither_deaf_nor_busy(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    start_worker("--users", "ann").wait_ready()
    push("noop", user="bob")
    # Of a command that has not come to its first end, as waiting does with the marker, the server says nothing.
    eventually(lambda: redis.info("commandstats").get("cmdstat_bzpopmin", {"calls": 0})["calls"] > 1)
    before = redis.info("commandstats")["cmdstat_fcall"]["calls"]
    time.sleep(1.0)  # a second of what it does while there is nothing for it
    assert redis.info("commandstats")["cmdstat_fcall"]["calls"] - before < 30
    mine = push("noop", user="ann")
    eventually(lambda: queue.get_task(mine).state is TaskState.FINISHED, 2)


@both_ways
def test_a_process_is_replaced_after_its_tasks(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    ids = [push("whoami") for _ in range(25)]
    worker = start_worker("--burst", "--max-tasks", "10", "--concurrency", "3")
    assert worker.wait() == 0
    ran: dict[int, int] = {}
    for task_id in ids:
        pid = queue.get_task(task_id).result
        ran[pid] = ran.get(pid, 0) + 1
    assert sorted(ran.values()) == [5, 10, 10]
    assert all(queue.history(task_id) == [] for task_id in ids)


def test_a_process_is_replaced_when_the_last_of_its_tasks_has_ended(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    start_worker("--max-tasks", "2", "--concurrency", "4").wait_ready()
    long = push("nap", 2.0)
    eventually(lambda: recorded(redis, STARTED))
    short, another = push("whoami"), push("whoami")
    pid = eventually(lambda: queue.get_task(short).result)
    assert queue.get_task(another).state is TaskState.QUEUED
    assert eventually(lambda: queue.get_task(another).result) != pid
    assert queue.get_task(long).state is TaskState.FINISHED


@both_ways
def test_a_process_is_replaced_when_it_uses_too_much_memory(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--max-memory", "300").wait_ready()
    (first,) = worker.children()
    assert queue.get_task(push("eats", 300)).state
    eventually(lambda: not is_alive(first))
    pid = push("whoami")
    assert eventually(lambda: queue.get_task(pid).result) != first.pid
    assert ": it uses" in worker.log
    assert "died" not in worker.log


@both_ways
def test_a_limit_that_no_process_can_keep_is_logged_and_does_not_load_the_machine(
    queue: FairQueue, push: Push, start_worker: StartWorker
) -> None:
    task_id = push("noop")
    worker = start_worker("--max-memory", "10")
    message = "MB before the first one, more than --max-memory (MAX_MEMORY_MB) allows, 10; set that well above"
    eventually(lambda: worker.log.count(message) >= 3)
    time.sleep(1.0)  # the pauses are 0.5 s, 1 s and 2 s
    assert worker.log.count(message) == 3
    assert "replacing worker process" not in worker.log
    assert worker.stop() == 0
    assert queue.get_task(task_id).state is TaskState.QUEUED


def test_the_health_file_is_written_while_it_lives(start_worker: StartWorker) -> None:
    worker = start_worker("--worker", "w1").wait_ready()
    first = eventually(lambda: worker.health().get("status") == "healthy" and worker.health())
    assert first["worker"].startswith("w1-")
    assert first["pid"] == worker.pid
    eventually(lambda: worker.health()["time"] > first["time"])
    assert worker_health(worker.health_file) == Health("good", [], ANY)
    assert worker.stop() == 0
    assert not worker.health_file.exists()
    assert worker_health(worker.health_file).status == "down"


def test_connections_to_the_database_do_not_outlive_a_task(
    queue: FairQueue, push: Push, start_worker: StartWorker, tmp_path: Path
) -> None:
    ids = [push(name) for _ in range(10) for name in ("query", "query_async")]
    # One at a time: coroutines share one thread for their queries, and with it its connection.
    worker = start_worker("--burst", "--concurrency", "1", TEST_DATABASE=str(tmp_path / "db.sqlite3"))
    assert worker.wait() == 0
    assert [queue.get_task(task_id).result for task_id in ids] == [[42, 0]] * 20


def test_a_transaction_that_a_task_forgot_does_not_reach_the_next(
    queue: FairQueue, push: Push, start_worker: StartWorker, tmp_path: Path
) -> None:
    ids = [push(name) for name in ("leaves_open", "query", "leaves_open", "query")]
    worker = start_worker("--burst", "--concurrency", "1", TEST_DATABASE=str(tmp_path / "db.sqlite3"))
    assert worker.wait() == 0
    assert [queue.get_task(task_id).result for task_id in ids] == [None, [42, 0], None, [42, 0]]
    assert worker.log.count("a task left a transaction of database 'default' open") == 2


def test_an_outcome_and_the_next_fetch_travel_together(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    queue.push_batch(Task.create("ann", 3, {"args": [], "kwargs": {}}, name="noop") for _ in range(2000))
    redis.config_resetstat()
    assert start_worker("--burst").wait() == 0
    calls = redis.info("commandstats")["cmdstat_fcall"]["calls"]
    assert queue.get_stats().states["finished"] == 2000
    assert calls < 200  # one call for 2 × 8 tasks at first, then for some 50; sweeps and heartbeats beside


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--users", "ann,bob", "--steal", "bob"], "'bob'"),
        (["--processes", "0"], "--processes: expected"),
        (["--users", ""], "--users: expected user ids"),
        (["--start-method", "fork"], "spawn"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (
            ["--users", "ann", "--steal", "*", "--concurrency", "0"],
            "--concurrency: expected a whole number from 1 to 1000",
        ),
    ],
)
def test_a_mistake_is_refused_with_one_clear_line(
    server: Server, settings: Settings, arguments: list[str], expected: str
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    try:
        with pytest.raises(CommandError) as refusal:
            call_command("fairque_worker", *arguments)
    finally:
        set_overrides({})
    (line,) = str(refusal.value).splitlines()
    assert expected in line


def test_a_mistake_ends_the_process_with_one_clear_line(start_worker: StartWorker) -> None:
    worker = start_worker("--queue", "mial")
    assert worker.wait() != 0
    (line,) = worker.log.strip().splitlines()
    assert "did you mean mail" in line


@both_ways
def test_a_project_that_can_not_begin_ends_it(start_worker: StartWorker, tmp_path: Path) -> None:
    a_thread = tmp_path / "more_tasks.py"  # so that the fork server is not a copy of the supervisor, which could begin
    a_thread.write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()")
    worker = start_worker(TEST_BREAK_CHILDREN="1", TEST_MORE_TASKS=str(a_thread))
    assert worker.wait() == 1
    assert worker.log.count("RuntimeError: this module can't be imported in a worker's child") == 3
    assert "could not begin" in worker.log
    assert "3 worker processes in a row could not begin; giving up" in worker.log
