"""The supervisor judges its processes by its own clock: code of a task can damage all that a process says about itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.worker.common.status_board import StatusBoard
from django_fairque.worker.supervisor.board_watch import BoardWatch
from tests.worker.conftest import eventually, recorded
from tests.worker.fetching.planners import lease
from tests.worker.project.tasks import STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker


def watched() -> tuple[StatusBoard, BoardWatch]:
    status_board = StatusBoard.private(slots=2, shard_count=2)
    return status_board, BoardWatch(status_board, 0.0)


def let_pass(watch: BoardWatch, start: int, end: int) -> None:
    for now in range(start, end):
        watch.update(float(now))


class TestWatch:
    def test_what_is_beyond_its_limit_is_found_whatever_the_process_wrote_of_its_start(self) -> None:
        status_board, watch = watched()
        status_board.begin(1, 0, lease(), 1e9, 10.0)  # a frozen clock may show any time
        let_pass(watch, 1, 15)
        assert watch.beyond_limit(5.0) == []
        let_pass(watch, 15, 18)
        assert [each.started for each in watch.beyond_limit(5.0)] == [1e9]
        status_board.end(1)
        let_pass(watch, 18, 19)
        assert watch.beyond_limit(5.0) == []

    def test_a_task_with_a_wrong_start_is_not_beyond_its_limit(self) -> None:
        status_board, watch = watched()
        status_board.begin(1, 0, lease(), 0.0, 10.0)
        (running,) = status_board.running()
        let_pass(watch, 1, 4)
        assert not watch.has_run(running)
        let_pass(watch, 4, 12)
        assert watch.has_run(running)

    def test_outcomes_that_are_not_reported_are_found(self) -> None:
        status_board, watch = watched()
        status_board.record_outcomes(0, 1, 2)
        let_pass(watch, 1, 8)
        assert watch.unreported_seconds() > 5
        assert watch.unreported_seconds(without=[1]) < 1
        status_board.set_settled(1, 1)  # it goes on
        let_pass(watch, 8, 10)
        assert watch.unreported_seconds() <= 2
        status_board.set_settled(1, 2)
        let_pass(watch, 10, 30)
        assert watch.unreported_seconds() < 1

    def test_time_in_which_this_process_did_not_run_does_not_count(self) -> None:
        status_board, watch = watched()
        status_board.record_tick()
        watch.update(1.0)
        watch.update(500.0)
        assert watch.silent_seconds <= 1.0
        status_board.end_ticking()
        status_board.record_tick()
        let_pass(watch, 501, 510)
        assert watch.silent_seconds == 0


@pytest.mark.parametrize("how", ["constant clock", "raising clock", "limited memory"])
def test_later_tasks_end_after_one_has_damaged_its_process(
    queue: FairQueue, push: Push, start_worker: StartWorker, how: str
) -> None:
    start_worker("--processes", "1", "--concurrency", "8", FAIRQUE_WORKER__LEASE_SECONDS="3").wait_ready()
    damaging = push("damages_process", how, user="mallory")
    eventually(lambda: queue.get_task(damaging).state is TaskState.FINISHED)
    later = [push("nap_lightly", 0.05, user=f"user{number % 5}") for number in range(15)]
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in later), 60)


def test_a_process_that_a_signal_has_stopped_is_ended_after_two_leases(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, tmp_path: object
) -> None:
    worker = start_worker("--processes", "1", "--concurrency", "2", FAIRQUE_WORKER__LEASE_SECONDS="3").wait_ready()
    end = f"{tmp_path}/end"
    tasks = [push("waits_for", end, user=user) for user in ("ann", "bob")]
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    (child,) = worker.children()
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: "does not respond" in str(queue.health().reasons))
    eventually(lambda: worker.health()["status"] == "unhealthy")
    eventually(lambda: len(recorded(redis, STARTED)) == 4)
    assert "It is stopped by a signal" in worker.log
    with open(end, "w"):  # noqa: PTH123 - a path as a text is what the task takes
        pass
    eventually(lambda: all(queue.get_task(each).state is TaskState.FINISHED for each in tasks))
    eventually(lambda: worker.health()["status"] == "healthy")
    assert not psutil.pid_exists(child.pid)


def test_a_process_whose_interpreter_is_kept_is_reported_and_keeps_the_limit_of_the_task_that_keeps_it(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    worker = start_worker(
        *("--processes", "1", "--concurrency", "2"),
        FAIRQUE_WORKER__LEASE_SECONDS="3",
        FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.5",
    ).wait_ready()
    short = push("nap", 2.0, user="ann", timeout=3, max_retries=0)
    eventually(lambda: len(recorded(redis, STARTED)) == 1)
    keeping = push("backtrack", 40, user="mallory", timeout=9, max_retries=0)
    eventually(lambda: f"Tasks that may be the cause: {keeping}." in worker.log)
    assert "It uses processor time" in worker.log
    eventually(lambda: worker.health()["status"] == "unhealthy")
    eventually(lambda: queue.get_task(keeping).state is TaskState.FAILED)
    eventually(lambda: queue.get_task(short).state is TaskState.FINISHED)
    kinds = [attempt.kind for attempt in queue.history(short)]
    assert set(kinds) == {"released"}  # more than once if it started again before the other task's limit
