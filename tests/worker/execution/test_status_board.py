"""What one process writes about itself, another can read whole."""

from __future__ import annotations

import threading
import time

from django_fairque.worker.execution.status_board import Board, Running
from tests.worker.fetching.planners import lease


def test_what_runs_can_be_read() -> None:
    board = Board.private(slots=3, lanes=2)
    assert board.running() == []
    one, many = lease(), [lease() for _ in range(40)]
    board.begin(0, 1, one, 10.0, 5.0)
    board.begin_batch(2, 0, many, 11.0, 6.0)
    first, second = board.running()
    assert (first.lane, first.started, first.timeout, first.tasks) == (1, 10.0, 5.0, ((one.token, 0, one.task_id),))
    assert second.tokens == [each.token for each in many]
    board.end(0)
    board.end(2)
    assert board.running() == []


def test_a_batch_that_does_not_fit_is_cut() -> None:
    board = Board.private(slots=1, lanes=1)
    board.begin_batch(0, 0, [lease() for _ in range(5000)], 0.0, 1.0)
    (running,) = board.running()
    assert 900 < len(running.tasks) < 5000


def test_counts_and_rounds() -> None:
    board = Board.private(slots=1, lanes=2)
    board.count(3)
    board.count(4)
    assert board.done == 7
    board.polled(0)
    assert board.last_poll() == 0
    board.polled(1)
    assert board.last_poll() > 0


def test_a_reader_never_sees_half_a_record() -> None:
    board, ended, leases = Board.private(slots=1, lanes=1), threading.Event(), [lease() for _ in range(50)]
    known = {each.token: each.task_id for each in leases}

    def write() -> None:
        while not ended.is_set():
            for each in leases:
                board.begin(0, 0, each, float(each.token), 1.0)
                board.end(0)

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[Running] = []
    deadline = time.monotonic() + 20
    while len(seen) < 200 and time.monotonic() < deadline:
        seen += board.running()
    ended.set()
    thread.join()
    assert len(seen) >= 200
    for running in seen:
        ((token, _, task_id),) = running.tasks
        assert (known[token], float(token)) == (task_id, running.started)
