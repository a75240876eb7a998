"""Time limits end a task for good: softly where Python can be reached, by replacing the process where it can't."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import both_ways, eventually, recorded
from tests.worker.project.tasks import ENDED, STARTED

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.worker.conftest import Push, StartWorker

pytestmark = both_ways


def test_a_task_can_tidy_up_at_its_soft_limit(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    tidy, threads, coroutine = (
        push("tidy_up", timeout=0.3),
        push("nap", 60.0, timeout=0.3),
        push("nap_async", 60.0, timeout=0.3),
    )
    for task_id in (threads, coroutine):
        queue.get_task(task_id)
    start_worker("--max-tasks", "100")
    eventually(lambda: queue.get_task(tidy).state is TaskState.FINISHED)
    assert queue.get_task(tidy).result == "tidied up"
    for task_id in (threads, coroutine):
        eventually(lambda task_id=task_id: queue.history(task_id))  # type: ignore[misc]
        assert "SoftTimeLimitExceeded" in queue.history(task_id)[0].error
        queue.cancel(task_id)
    assert recorded(redis, ENDED) == []


def test_a_queue_has_a_limit_for_tasks_that_bring_none(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker
) -> None:
    limited = [push(name, 60.0, max_retries=0) for name in ("nap", "nap_async", "nap_together", "deaf")]
    own = push("nap", 1.0, timeout=60.0)
    start_worker(
        FAIRQUE_QUEUE__DEFAULT_TASK_TIMEOUT="0.3",
        FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.3",
        FAIRQUE_WORKER__LEASE_SECONDS="5",
    )
    for task_id in limited:
        eventually(lambda task_id=task_id: queue.get_task(task_id).state is TaskState.FAILED)  # type: ignore[misc]
    errors = [queue.dlq.get(f"{task_id}~1").reason for task_id in limited]
    assert all("SoftTimeLimitExceeded" in each for each in errors[:3]), errors
    assert "did not end at its time limit of 0.3 s" in errors[3]
    eventually(lambda: queue.get_task(own).state is TaskState.FINISHED)
    assert [ended for ended, _ in recorded(redis, ENDED)] == [own]


@pytest.mark.parametrize(("name", "argument"), [("deaf", 60.0), ("hog", 30_000_000)])
def test_a_task_that_does_not_listen_ends_with_its_process(
    queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker, name: str, argument: float
) -> None:
    # The lease is shorter than the limit: who holds the interpreter keeps the lease all the same.
    worker = start_worker(
        "--concurrency", "2", FAIRQUE_WORKER__LEASE_SECONDS="1", FAIRQUE_WORKER__HARD_TIMEOUT_GRACE="0.3"
    ).wait_ready()
    neighbor = push("deaf", 2.5)
    eventually(lambda: recorded(redis, STARTED))
    stuck = push(name, argument, timeout=1.2, max_retries=0)
    eventually(lambda: queue.get_task(stuck).state is TaskState.FAILED)
    (entry,) = queue.dlq.list().items
    assert "did not end at its time limit of 1.2 s" in entry.reason
    assert [attempt.kind for attempt in queue.history(stuck)] == ["failed"]
    # What ran beside it is not to blame: given back uncounted, and run by the next process.
    eventually(lambda: queue.get_task(neighbor).state is TaskState.FINISHED)
    assert [(a.kind, a.error) for a in queue.history(neighbor)] == [
        ("released", "another task ran beyond its hard time limit")
    ]
    assert "its limit is 1.2 s" in worker.log
    eventually(lambda: f"task {stuck} {name} of user ann was ended with its process and failed for good" in worker.log)


def test_a_canceled_task_is_stopped(queue: FairQueue, redis: Redis, push: Push, start_worker: StartWorker) -> None:
    worker = start_worker("-v", "2", FAIRQUE_WORKER__LEASE_SECONDS="1").wait_ready()
    ids = [push("nap", 60.0), push("nap_async", 60.0)]
    eventually(lambda: len(recorded(redis, STARTED)) == 2)
    for task_id in ids:
        queue.cancel(task_id)
    eventually(lambda: worker.log.count("stopped: it is not this worker's any more") == 2)
    assert recorded(redis, ENDED) == []
    assert [queue.get_task(task_id).state for task_id in ids] == [TaskState.CANCELED] * 2
    good = push("add", 1, 1)
    eventually(lambda: queue.get_task(good).state is TaskState.FINISHED)
