"""The supervisor judges its processes by its own clock: code of a task can damage all that a process says about itself."""

from __future__ import annotations

import signal

import psutil
import pytest

from django_fairque.engine.model.records import TaskState
from django_fairque.worker.common.status_board import StatusBoard
from django_fairque.worker.supervisor.board_watch import BoardWatch
from tests.worker.conftest import Workers, eventually
from tests.worker.fetching.planners import lease


def watched() -> tuple[StatusBoard, BoardWatch]:
    status_board = StatusBoard.private(slots=2, shard_count=2)
    return status_board, BoardWatch(status_board, 0.0)


def let_pass(watch: BoardWatch, start: int, end: int) -> None:
    for now in range(start, end):
        watch.update(float(now))


class TestWatch:
    def test_a_task_beyond_its_limit_is_found_despite_a_wrong_start_time(self) -> None:
        status_board, watch = watched()
        status_board.begin(1, 0, lease(), 1e9, 10.0)  # a frozen clock may show any time
        let_pass(watch, 1, 15)
        assert watch.beyond_limit(5.0) == []
        let_pass(watch, 15, 18)
        assert [running.started for running in watch.beyond_limit(5.0)] == [1e9]
        status_board.end(1)
        let_pass(watch, 18, 19)
        assert watch.beyond_limit(5.0) == []

    def test_a_task_with_a_wrong_start_is_not_beyond_its_limit(self) -> None:
        status_board, watch = watched()
        status_board.begin(1, 0, lease(), 0.0, 10.0)
        (running,) = status_board.list_running()
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
        status_board.set_settled(1, 1)  # the process reports an outcome
        let_pass(watch, 8, 10)
        assert watch.unreported_seconds() <= 2
        status_board.set_settled(1, 2)
        let_pass(watch, 10, 30)
        assert watch.unreported_seconds() < 1

    def test_time_while_the_supervisor_was_stopped_does_not_count(self) -> None:
        status_board, watch = watched()
        status_board.record_tick()
        watch.update(1.0)
        watch.update(500.0)
        assert watch.silent_seconds <= 1.0
        status_board.end_ticking()
        status_board.record_tick()
        let_pass(watch, 501, 510)
        assert watch.silent_seconds == 0


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["constant clock", "raising clock", "limited memory"])
def test_later_tasks_end_after_a_task_has_damaged_its_process(workers: Workers, how: str) -> None:
    workers.start("--processes", "1", "--concurrency", "8", lease_seconds="3").wait_ready()
    workers.run("damages_process", how, user="mallory")
    later = [workers.push("nap_lightly", 0.05, user=f"user{number % 5}") for number in range(15)]
    workers.wait_for(*later)


@pytest.mark.thorough
def test_a_process_that_a_signal_has_stopped_is_ended_after_two_leases(workers: Workers, tmp_path: object) -> None:
    worker = workers.start("--processes", "1", "--concurrency", "2", lease_seconds="3").wait_ready()
    end = f"{tmp_path}/end"
    tasks = [workers.push("waits_for", end, user=user) for user in ("ann", "bob")]
    workers.wait_started(2)
    (child,) = worker.children()
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: "does not respond" in str(workers.queue.health().reasons))
    eventually(lambda: worker.health()["status"] == "unhealthy")
    workers.wait_started(4)
    assert "It is stopped by a signal" in worker.log
    with open(end, "w"):  # noqa: PTH123 - a path as a text is what the task takes
        pass
    workers.wait_for(*tasks)
    eventually(lambda: worker.health()["status"] == "healthy")
    assert not psutil.pid_exists(child.pid)


@pytest.mark.thorough
def test_a_process_whose_interpreter_is_blocked_is_reported_and_ended_by_the_task_s_limit(workers: Workers) -> None:
    worker = workers.start(
        *("--processes", "1", "--concurrency", "2"), lease_seconds="3", hard_timeout_grace="0.5"
    ).wait_ready()
    short = workers.push("nap", 2.0, user="ann", timeout=3, max_retries=0)
    workers.wait_started(1)
    keeping = workers.push("backtrack", 40, user="mallory", timeout=9, max_retries=0)
    eventually(lambda: f"Tasks that may be the cause: {keeping}." in worker.log)
    assert "It uses processor time" in worker.log
    eventually(lambda: worker.health()["status"] == "unhealthy")
    workers.wait_for(keeping, state=TaskState.FAILED)
    workers.wait_for(short)
    kinds = workers.kinds(short)
    assert set(kinds) == {"released"}  # more than once if it started again before the other task's limit
