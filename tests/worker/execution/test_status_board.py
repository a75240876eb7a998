"""Tests that a process reads the complete status that another process writes."""

from __future__ import annotations

import threading
import time

from django_fairque.worker.common.status_board import OccupiedSlot, StatusBoard
from tests.worker.fetching.planners import lease


def test_the_status_board_lists_running_tasks() -> None:
    status_board = StatusBoard.private(slots=3, shard_count=2)
    assert status_board.list_running() == []
    one, many = lease(), [lease() for _ in range(40)]
    status_board.begin(0, 1, one, 10.0, 5.0)
    status_board.begin_batch(2, 0, many, 11.0, 6.0)
    first, second = status_board.list_running()
    assert (first.shard_index, first.started, first.timeout, first.tasks) == (
        1,
        10.0,
        5.0,
        ((one.token, 0, one.task_id),),
    )
    assert second.tokens == [item.token for item in many]
    status_board.end(0)
    status_board.end(2)
    assert status_board.list_running() == []


def test_a_batch_that_does_not_fit_is_cut() -> None:
    status_board = StatusBoard.private(slots=1, shard_count=1)
    status_board.begin_batch(0, 0, [lease() for _ in range(5000)], 0.0, 1.0)
    (running,) = status_board.list_running()
    assert 900 < len(running.tasks) < 5000


def test_the_status_board_counts_finished_tasks_and_polls() -> None:
    status_board = StatusBoard.private(slots=1, shard_count=2)
    status_board.add_done(3)
    status_board.add_done(4)
    assert status_board.done == 7
    status_board.record_poll(0)
    status_board.record_tick()
    assert (status_board.polls(0), status_board.polls(1), status_board.ticks) == (1, 0, 1)
    status_board.record_outcomes(0, 1, 2)
    assert (status_board.count_unreported(0), status_board.count_unreported(1)) == ((0, 0), (2, 0))
    status_board.set_settled(1, 2)
    assert status_board.count_unreported(1) == (0, 2)


def test_a_reader_never_sees_half_a_record() -> None:
    status_board, ended, leases = (
        StatusBoard.private(slots=1, shard_count=1),
        threading.Event(),
        [lease() for _ in range(50)],
    )
    known = {item.token: item.task_id for item in leases}

    def write() -> None:
        while not ended.is_set():
            for item in leases:
                status_board.begin(0, 0, item, float(item.token), 1.0)
                status_board.end(0)

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[OccupiedSlot] = []
    deadline = time.monotonic() + 20
    while len(seen) < 200 and time.monotonic() < deadline:
        seen += status_board.list_running()
    ended.set()
    thread.join()
    assert len(seen) >= 200
    for running in seen:
        ((token, _, task_id),) = running.tasks
        assert (known[token], float(token)) == (task_id, running.started)
