"""Tests that a coroutine that misuses the shared event loop harms only itself and no coroutines of other users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import Attempt, TaskState
from tests.worker.conftest import Workers, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue

LIMITS = {"FAIRQUE_WORKER__HARD_TIMEOUT_GRACE": "0.3"}


def failures(queue: FairQueue, task_id: str) -> list[Attempt]:
    """Its attempts that failed. A process that gets no processor for a second gives back tasks that have not begun, which is
    no failure, and happens on a busy machine.
    """
    return [attempt for attempt in queue.history(task_id) if attempt.kind != "released"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("exits_in_gather", "SystemExit: a coroutine ended its event loop"),
        ("stops_loop", "RuntimeError: loop.stop() can't be called in a task"),
        ("shuts_executor", "RuntimeError: loop.shutdown_default_executor() can't be called in a task"),
    ],
)
def test_the_event_loop_survives_a_task_that_stops_it(workers: Workers, name: str, error: str) -> None:
    worker = workers.start("--concurrency", "8").wait_ready()
    others = [workers.push("nap_async", 1.0, user=f"user-{number}") for number in range(4)]
    workers.wait_started(4)
    culprit = workers.push(name, user="mallory", max_retries=0)
    later = workers.push("nap_async", 0.01)
    workers.wait_for(culprit, state=TaskState.FAILED)
    (entry,) = workers.queue.dlq.list().items
    assert entry.reason.startswith(error)
    for task_id in (*others, later):
        workers.wait_for(task_id)
        assert failures(workers.queue, task_id) == []
    assert len([task_id for task_id, _ in workers.started() if task_id != culprit]) == 5
    assert len(worker.children()) == 1
    if name == "exits_in_gather":
        assert f"task {culprit} exits_in_gather of user mallory raised SystemExit" in worker.log


def test_the_event_loop_survives_a_callback_that_exits(workers: Workers) -> None:
    worker = workers.start()
    culprit = workers.run("exits_in_callback", user="mallory")
    assert f"task {culprit} exits_in_callback of user mallory raised SystemExit" in worker.log


def test_a_broken_event_loop_is_replaced_and_only_the_task_that_broke_it_fails(workers: Workers) -> None:
    worker = workers.start("--concurrency", "8").wait_ready()
    others = [workers.push("nap_async", 1.0, user=f"user-{number}") for number in range(4)]
    workers.wait_started(4)
    culprit = workers.push("breaks_loop", user="mallory", max_retries=0)
    workers.wait_for(culprit, state=TaskState.FAILED)
    assert workers.queue.dlq.list().items[0].reason == "RuntimeError: the task broke the event loop that it ran on"
    for other in others:
        workers.wait_for(other)
        assert failures(workers.queue, other) == []
    starts = [task_id for task_id, _ in workers.started()]
    assert [starts.count(other) for other in others] == [2] * 4
    workers.run("nap_async", 0.01)
    assert "the event loop of this process broke and is replaced" in worker.log


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["blocks_loop", "blocks_in_background"])
def test_a_blocked_loop_is_reported_with_its_task_and_stack(workers: Workers, tmp_path: Path, name: str) -> None:
    worker, until = workers.start("--concurrency", "8").wait_ready(), tmp_path / "until"
    other = workers.push("nap_lightly", 1.5)
    culprit = workers.push(name, 60.0, str(until), user="mallory")
    workers.wait_started()
    named = f" is blocked by task {culprit} {name} of user mallory"
    eventually(lambda: any(named in reason for reason in worker.health()["reasons"]))
    # The process fetches nothing, and gives back tasks that could not begin.
    waiting = [workers.push("nap_lightly", 0.01, user="ann"), workers.push("noop", user="bob")]
    eventually(lambda: any(named in reason for reason in workers.queue.health().reasons))
    assert f"by task {culprit} {name} of user mallory; the process fetches nothing" in worker.log
    assert "in _block\n    time.sleep(0.02)" in worker.log
    until.touch()
    for task_id in (culprit, other, *waiting):
        workers.wait_for(task_id)
        assert failures(workers.queue, task_id) == []
    assert all((workers.queue.get_task(task_id).started_at or 0.0) >= until.stat().st_mtime for task_id in waiting)
    eventually(lambda: worker.health()["status"] == "healthy")
    assert "fetching tasks again" in worker.log
    eventually(lambda: not any(named in reason for reason in workers.queue.health().reasons))


def test_tasks_that_a_blocked_loop_has_not_begun_run_elsewhere(workers: Workers) -> None:
    workers.start("--concurrency", "4").wait_ready()
    culprit = workers.push("blocks_loop", 120.0, user="mallory")
    workers.wait_started()
    others = [workers.push("nap_lightly", 0.01, user=f"user-{number}") for number in range(3)]
    workers.start("--concurrency", "4").wait_ready()
    workers.wait_for(*others)
    assert workers.state(culprit) is TaskState.STARTED
    assert all(attempt.kind != "failed" for other in others for attempt in workers.queue.history(other))


@pytest.mark.thorough
def test_a_task_whose_first_step_a_blocked_loop_delays_runs_elsewhere(workers: Workers, tmp_path: Path) -> None:
    workers.start("--concurrency", "4").wait_ready()
    workers.push("blocks_loop_before_another", 120.0, str(tmp_path / "until"), user="mallory")
    workers.wait_started(1)
    other = workers.push("nap_async", 0.01)
    workers.wait_started(2)  # the culprit again, as it blocks the loop
    with workers.start("--concurrency", "4"):
        workers.wait_for(other)
    (tmp_path / "until").touch()
    workers.run("nap_async", 0.01)  # the loop goes on, and does not run what was given back
    assert workers.starts()[other] == 1
    assert failures(workers.queue, other) == []


@pytest.mark.slow
def test_the_hard_limit_of_the_task_that_blocks_the_loop_ends_its_process(workers: Workers) -> None:
    worker = workers.start("--concurrency", "8", **LIMITS).wait_ready()
    before = worker.children()[0].pid
    # Their own limits pass while the loop is blocked, which is not their fault.
    others = [workers.push("nap_async", 3.0, user=f"user-{number}", timeout=3.6, max_retries=0) for number in range(3)]
    workers.wait_started(3)
    culprit = workers.push("blocks_loop", 60.0, user="mallory", timeout=6.0, max_retries=0)
    workers.wait_for(culprit, state=TaskState.FAILED)
    assert "did not end at its time limit of 6 s" in workers.queue.dlq.list().items[0].reason
    for other in others:
        workers.wait_for(other)
        assert workers.kinds(other) == ["released"]
    assert worker.children()[0].pid != before


@pytest.mark.thorough
def test_time_limits_do_not_count_while_the_loop_is_blocked(workers: Workers) -> None:
    workers.start("--concurrency", "8", **LIMITS).wait_ready()
    others = [workers.push("nap_async", 2.0, user=f"user-{number}", timeout=3.0, max_retries=0) for number in range(3)]
    workers.wait_started(3)
    culprit = workers.push("blocks_loop", 4.0, user="mallory")
    for task_id in (*others, culprit):
        eventually(lambda task_id=task_id: workers.queue.get_task(task_id).state.is_ended)  # type: ignore[misc]
    assert workers.states(others) == {TaskState.FINISHED}


def test_a_task_that_cancels_all_coroutines_cancels_only_its_own(workers: Workers) -> None:
    worker = workers.start("--concurrency", "8").wait_ready()
    others = [workers.push(name, 1.5, user=name, max_retries=0) for name in ("nap_async", "gathers")]
    workers.wait_started(2)
    culprit = workers.push("cancels_all", user="mallory", max_retries=0)
    workers.wait_for(culprit, state=TaskState.FAILED)
    assert "CancelledError" in workers.queue.dlq.list().items[0].reason
    for other in others:
        workers.wait_for(other)
        assert failures(workers.queue, other) == []
    starts = [task_id for task_id, _ in workers.started()]
    assert [starts.count(other) for other in others] == [
        1,
        2,
    ]  # the awaited task of the second one was canceled, so it began anew
    assert f"task {culprit} cancels_all of user mallory tried to cancel coroutines of other tasks" in worker.log
