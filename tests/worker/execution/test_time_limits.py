"""Time limits end a task for good: softly where Python can be reached, by replacing the process where it can't."""

from __future__ import annotations

import pytest

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import Workers, both_ways, eventually

pytestmark = both_ways


def test_a_task_can_tidy_up_at_its_soft_limit(workers: Workers) -> None:
    tidy, threads, coroutine = (
        workers.push("tidy_up", timeout=0.3),
        workers.push("nap", 60.0, timeout=0.3),
        workers.push("nap_async", 60.0, timeout=0.3),
    )
    for task_id in (threads, coroutine):
        workers.queue.get_task(task_id)
    workers.start("--max-tasks", "100")
    workers.wait_for(tidy)
    assert workers.queue.get_task(tidy).result == "tidied up"
    for task_id in (threads, coroutine):
        eventually(lambda task_id=task_id: workers.queue.history(task_id))  # type: ignore[misc]
        assert "SoftTimeLimitExceeded" in workers.queue.history(task_id)[0].error
        workers.queue.cancel(task_id)
    assert workers.ended() == []


def test_the_queue_s_time_limit_applies_to_tasks_without_one(workers: Workers) -> None:
    limited = [workers.push(name, 60.0, max_retries=0) for name in ("nap", "nap_async", "nap_together", "deaf")]
    own = workers.push("nap", 1.0, timeout=60.0)
    workers.start(FAIRQUE_QUEUE__DEFAULT_TASK_TIMEOUT="0.3", hard_timeout_grace="0.3", lease_seconds="5")
    workers.wait_for(*limited, state=TaskState.FAILED)
    errors = [workers.queue.dlq.get(f"{task_id}~1").reason for task_id in limited]
    assert all("SoftTimeLimitExceeded" in error for error in errors[:3]), errors
    assert "did not end at its time limit of 0.3 s" in errors[3]
    workers.wait_for(own)
    assert [ended for ended, _ in workers.ended()] == [own]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "argument"), [("deaf", 60.0), ("hog", 30_000_000)])
def test_a_task_that_ignores_its_time_limit_ends_with_its_process(workers: Workers, name: str, argument: float) -> None:
    worker = workers.start("--concurrency", "2", lease_seconds="1", hard_timeout_grace="0.3").wait_ready()
    neighbor = workers.push("deaf", 2.5)
    workers.wait_started()
    stuck = workers.push(name, argument, timeout=1.2, max_retries=0)
    workers.wait_for(stuck, state=TaskState.FAILED)
    (entry,) = workers.queue.dlq.list().items
    assert "did not end at its time limit of 1.2 s" in entry.reason
    assert workers.kinds(stuck) == ["failed"]
    # The other task is not to blame: it is given back uncounted, and the next process runs it.
    workers.wait_for(neighbor)
    assert [(a.kind, a.error) for a in workers.queue.history(neighbor)] == [
        ("released", "another task ran beyond its hard time limit")
    ]
    assert "its limit is 1.2 s" in worker.log
    eventually(lambda: f"task {stuck} {name} of user ann was ended with its process and failed for good" in worker.log)


def test_a_canceled_task_is_stopped(workers: Workers) -> None:
    worker = workers.start("-v", "2", lease_seconds="1").wait_ready()
    ids = [workers.push("nap", 60.0), workers.push("nap_async", 60.0)]
    workers.wait_started(2)
    for task_id in ids:
        workers.queue.cancel(task_id)
    eventually(lambda: worker.log.count("stopped: it is not this worker's any more") == 2)
    assert workers.ended() == []
    assert workers.states(ids) == {TaskState.CANCELED}
    workers.run("add", 1, 1)
