"""Tasks that a worker has fetched and not begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

LIMIT = 3
TASKS = 400


def test_they_count_against_the_users_number_of_running_tasks(
    queue: FairQueue, push: Push, start_worker: StartWorker
) -> None:
    """A worker with one slot runs one task and fetches others ahead: never more than the user may have running."""
    queue.user("ann").set_max_running(LIMIT)
    for _ in range(TASKS):
        push("noop")
    most = 0

    def is_done() -> bool:
        nonlocal most
        states = queue.get_stats().states
        most = max(most, states["started"])
        return states["queued"] == 0

    worker = start_worker("--concurrency", "1")
    eventually(is_done, 60)
    assert worker.stop() == 0
    assert 1 < most <= LIMIT
