"""Log lines of tasks: recorded under a current lease, of the last attempts, and forgotten with the task."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.inspection.task_logs import AttemptLog, LogLine
from django_fairque.engine.model.errors import StaleLeaseError, TaskSerializationError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop

KEY = "fq:{default:0}:logs:t"


def line(text: str) -> LogLine:
    return LogLine(NOW, "INFO", "shop", text)


def push(queue: FairQueue, task_id: str = "t") -> None:
    queue.push(Task.create("ann", 3, None, task_id=task_id, max_retries=20), now=NOW)


def texts(queue: FairQueue) -> list[list[str]]:
    return [[line.text for line in log.lines] for log in queue.logs.of_task("t")]


def test_recorded_log_lines_replace_earlier_ones_of_the_attempt(queue: FairQueue) -> None:
    push(queue)
    lease = pop(queue)
    queue.logs.record(lease, [line("one")], now=NOW)
    queue.logs.record(lease, [line("one"), line("two")], 7, now=NOW)
    assert queue.logs.of_task("t") == [AttemptLog("w", 1, 7, (line("one"), line("two")))]
    queue.finish(lease, now=NOW)
    assert texts(queue) == [["one", "two"]], "the log stays while the task is kept"
    assert queue.logs.of_task("unknown") == []


def test_an_outdated_lease_records_no_log_lines(queue: FairQueue) -> None:
    push(queue)
    lease = pop(queue)
    queue.finish(lease, now=NOW)
    with pytest.raises(StaleLeaseError):
        queue.logs.record(lease, [line("late")], now=NOW)
    assert texts(queue) == []


def test_the_last_five_attempts_are_kept(queue: FairQueue) -> None:
    push(queue)
    for number in range(12):
        lease = pop(queue, NOW + number)
        queue.logs.record(lease, [line(f"attempt {number}")], now=NOW + number)
        queue.fail(lease, "no", delay=0.001, now=NOW + number)
    assert texts(queue) == [[f"attempt {number}"] for number in range(7, 12)]
    assert [log.attempt for log in queue.logs.of_task("t")] == [8, 9, 10, 11, 12]
    assert queue.logs.with_history("t") == (queue.history("t"), queue.logs.of_task("t"))


def test_log_lines_that_are_too_long_or_invalid_unicode_are_refused(queue: FairQueue) -> None:
    push(queue)
    lease = pop(queue)
    for text in ("x" * 70_000, "\ud800"):
        with pytest.raises(TaskSerializationError):
            queue.logs.record(lease, [line(text)], now=NOW)
    assert texts(queue) == []


def test_logs_are_forgotten_with_their_task(queue: FairQueue, redis: Redis) -> None:
    push(queue)
    lease = pop(queue)
    queue.logs.record(lease, [line("one")], now=NOW)
    queue.finish(lease, now=NOW)
    queue.sweep(now=NOW + queue.config.result_ttl + 1)
    assert not redis.exists(KEY)


def test_leftover_logs_of_a_removed_task_are_repaired(queue: FairQueue, redis: Redis) -> None:
    redis.hset(KEY, "1", "[]")
    assert [violation.detail for violation in queue.check_invariants()] == ["its task is gone"]
    queue.repair(now=NOW)
    assert not redis.exists(KEY)


@pytest.mark.parametrize(
    "value", ["", "nonsense", "[]", '["w",1,0,[[1,2]]]', '["w",1,0,[[1e300,"INFO","a","b"]]]', "{}"]
)
def test_a_damaged_log_entry_is_skipped(queue: FairQueue, redis: Redis, value: str) -> None:
    push(queue)
    lease = pop(queue)
    queue.logs.record(lease, [line("one")], now=NOW)
    redis.hset(KEY, "0", value)
    redis.hset(KEY, "x", value)
    assert texts(queue) == [["one"]]


def test_a_key_of_a_wrong_type_hides_only_the_lines_of_its_task(queue: FairQueue, redis: Redis) -> None:
    push(queue)
    lease = pop(queue)
    redis.set(KEY, "damaged")
    queue.logs.record(lease, [line("one")], now=NOW)
    assert texts(queue) == []
    queue.finish(lease, now=NOW)
    redis.delete(KEY)


def test_log_lines_are_recorded_on_several_shards(make_queue: MakeQueue) -> None:
    queue = make_queue(shards=3)
    for number in range(6):
        queue.push(Task.create(f"user-{number}", 3, None, task_id=f"task-{number}"), now=NOW)
    for lease in queue.pop_batch(6, "w", now=NOW):
        queue.logs.record(lease, [line(lease.task_id)], now=NOW)
        queue.finish(lease, now=NOW)
    for number in range(6):
        (log,) = queue.logs.of_task(f"task-{number}")
        assert log.lines == (line(f"task-{number}"),)
