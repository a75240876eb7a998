"""What a coroutine does to the event loop that it shares with the coroutines of other users harms only itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import Attempt, TaskState
from tests.worker.conftest import eventually, recorded
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

LIMITS = {"FAIRQUE_WORKER__HARD_TIMEOUT_GRACE": "0.3"}


def failures(queue: FairQueue, task_id: str) -> list[Attempt]:
    """Its attempts that failed. A process that gets no processor for a second gives back tasks that have not begun, which is
    no failure, and happens on a busy machine.
    """
    return [attempt for attempt in queue.history(task_id) if attempt.kind != "released"]


@pytest.fixture
def is_in(queue: FairQueue) -> Callable[[str, TaskState], bool]:
    return lambda task_id, state: queue.get_task(task_id).state is state


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("exits_in_gather", "SystemExit: a coroutine ended its event loop"),
        ("stops_loop", "RuntimeError: loop.stop() can't be called in a task"),
        ("shuts_executor", "RuntimeError: loop.shutdown_default_executor() can't be called in a task"),
    ],
)
def test_the_loop_outlives_a_task_that_ends_it(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, name: str, error: str
) -> None:
    worker = start_worker("--concurrency", "8").wait_ready()
    others = [push("nap_async", 1.0, user=f"user-{number}") for number in range(4)]
    eventually(lambda: len(recorded(redis, STARTED)) == 4)
    culprit = push(name, user="mallory", max_retries=0)
    later = push("nap_async", 0.01)
    eventually(lambda: queue.get_task(culprit).state is TaskState.FAILED)
    (entry,) = queue.dlq.list().items
    assert entry.reason.startswith(error)
    for each in (*others, later):
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED)  # type: ignore[misc]
        assert failures(queue, each) == []
    assert len([each for each, _ in recorded(redis, STARTED) if each != culprit]) == 5
    assert len(worker.children()) == 1
    if name == "exits_in_gather":
        assert f"task {culprit} exits_in_gather of user mallory raised SystemExit" in worker.log


def test_the_loop_outlives_a_callback_that_exits(queue: FairQueue, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker()
    culprit = push("exits_in_callback", user="mallory")
    eventually(lambda: queue.get_task(culprit).state is TaskState.FINISHED)
    assert f"task {culprit} exits_in_callback of user mallory raised SystemExit" in worker.log


def test_a_loop_that_broke_is_replaced_and_only_the_culprit_fails(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--concurrency", "8").wait_ready()
    others = [push("nap_async", 1.0, user=f"user-{number}") for number in range(4)]
    eventually(lambda: len(recorded(redis, STARTED)) == 4)
    culprit = push("breaks_loop", user="mallory", max_retries=0)
    eventually(lambda: queue.get_task(culprit).state is TaskState.FAILED)
    assert queue.dlq.list().items[0].reason == "RuntimeError: the task broke the event loop that it ran on"
    for each in others:
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED)  # type: ignore[misc]
        assert failures(queue, each) == []
    starts = [each for each, _ in recorded(redis, STARTED)]
    assert [starts.count(each) for each in others] == [2] * 4
    later = push("nap_async", 0.01)
    eventually(lambda: queue.get_task(later).state is TaskState.FINISHED)
    assert "the event loop of this process broke and is replaced" in worker.log


@pytest.mark.parametrize("name", ["blocks_loop", "blocks_in_background"])
def test_a_blocked_loop_is_reported_with_its_task_and_stack(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, tmp_path: Path, name: str
) -> None:
    worker, until = start_worker("--concurrency", "8").wait_ready(), tmp_path / "until"
    other = push("nap_lightly", 1.5)
    culprit = push(name, 60.0, str(until), user="mallory")
    eventually(lambda: recorded(redis, STARTED))
    named = f" is blocked by task {culprit} {name} of user mallory"
    eventually(lambda: any(named in each for each in worker.health()["reasons"]))
    # It fetches nothing, and gives back what could not begin.
    waiting = [push("nap_lightly", 0.01, user="ann"), push("noop", user="bob")]
    eventually(lambda: any(named in each for each in queue.health().reasons))
    assert f"by task {culprit} {name} of user mallory; the process fetches nothing" in worker.log
    assert "in _block\n    time.sleep(0.02)" in worker.log
    until.touch()
    for each in (culprit, other, *waiting):
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED)  # type: ignore[misc]
        assert failures(queue, each) == []
    assert all((queue.get_task(each).started_at or 0.0) >= until.stat().st_mtime for each in waiting)
    eventually(lambda: worker.health()["status"] == "healthy")
    assert "fetching tasks again" in worker.log
    eventually(lambda: not any(named in each for each in queue.health().reasons))


def test_tasks_that_a_blocked_loop_has_not_begun_run_elsewhere(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    start_worker("--concurrency", "4").wait_ready()
    culprit = push("blocks_loop", 120.0, user="mallory")
    eventually(lambda: recorded(redis, STARTED))
    others = [push("nap_lightly", 0.01, user=f"user-{number}") for number in range(3)]
    start_worker("--concurrency", "4").wait_ready()
    for each in others:
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED)  # type: ignore[misc]
    assert queue.get_task(culprit).state is TaskState.STARTED
    assert all(attempt.kind != "failed" for each in others for attempt in queue.history(each))


@pytest.mark.slow
def test_the_hard_limit_of_the_task_that_blocks_the_loop_ends_its_process(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--concurrency", "8", **LIMITS).wait_ready()
    before = worker.children()[0].pid
    # Their own limits pass while the loop is blocked, which is not their fault.
    others = [push("nap_async", 3.0, user=f"user-{number}", timeout=3.6, max_retries=0) for number in range(3)]
    eventually(lambda: len(recorded(redis, STARTED)) == 3)
    culprit = push("blocks_loop", 60.0, user="mallory", timeout=6.0, max_retries=0)
    eventually(lambda: queue.get_task(culprit).state is TaskState.FAILED, 30)
    assert "did not end at its time limit of 6 s" in queue.dlq.list().items[0].reason
    for each in others:
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED, 30)  # type: ignore[misc]
        assert [attempt.kind for attempt in queue.history(each)] == ["released"]
    assert worker.children()[0].pid != before


def test_limits_of_others_are_moved_by_the_time_for_which_the_loop_was_blocked(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    start_worker("--concurrency", "8", **LIMITS).wait_ready()
    others = [push("nap_async", 2.0, user=f"user-{number}", timeout=3.0, max_retries=0) for number in range(3)]
    eventually(lambda: len(recorded(redis, STARTED)) == 3)
    culprit = push("blocks_loop", 4.0, user="mallory")
    for each in (*others, culprit):
        eventually(lambda each=each: queue.get_task(each).state.is_ended)  # type: ignore[misc]
    assert [queue.get_task(each).state for each in others] == [TaskState.FINISHED] * 3


def test_whoever_cancels_all_coroutines_cancels_only_its_own(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker("--concurrency", "8").wait_ready()
    others = [push(name, 1.5, user=name, max_retries=0) for name in ("nap_async", "gathers")]
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    culprit = push("cancels_all", user="mallory", max_retries=0)
    eventually(lambda: queue.get_task(culprit).state is TaskState.FAILED)
    assert "CancelledError" in queue.dlq.list().items[0].reason
    for each in others:
        eventually(lambda each=each: queue.get_task(each).state is TaskState.FINISHED)  # type: ignore[misc]
        assert failures(queue, each) == []
    starts = [each for each, _ in recorded(redis, STARTED)]
    assert [starts.count(each) for each in others] == [
        1,
        2,
    ]  # what the second waited for was canceled, so it began anew
    assert f"task {culprit} cancels_all of user mallory tried to cancel coroutines of other tasks" in worker.log
