"""Tasks that a worker has fetched and not begun."""

from __future__ import annotations

from tests.worker.conftest import Workers, eventually

LIMIT = 3
TASKS = 400


def test_prefetched_tasks_count_against_the_user_s_limit_of_running_tasks(workers: Workers) -> None:
    """A worker with one slot runs one task and fetches others ahead: never more than the user may have running."""
    workers.queue.user("ann").set_max_running(LIMIT)
    for _ in range(TASKS):
        workers.push("noop")
    most = 0

    def is_done() -> bool:
        nonlocal most
        states = workers.queue.get_stats().states
        most = max(most, states["started"])
        return states["queued"] == 0

    worker = workers.start("--concurrency", "1")
    eventually(is_done, 60)
    assert worker.stop() == 0
    assert 1 < most <= LIMIT
