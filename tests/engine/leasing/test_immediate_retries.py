"""A task that asks for another run at once, again and again: ten times it gets it, then once a second, then no more."""

from __future__ import annotations

import pytest

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task


def waits(queue: FairQueue, delays: list[float], now: float = NOW) -> list[float]:
    """Seconds that the one task waits after each of these retries."""
    found = []
    for delay in delays:
        lease = pop(queue, now)
        assert queue.settle([Outcome.retry(lease, "not yet", delay=delay)], now=now).statuses == ["retried"]
        due = queue.get_task(lease.task_id).execute_after
        assert due is not None
        found.append(round(due - now, 3))
        now = due
    return found


@pytest.mark.parametrize("delay", [0, 0.5, 0.999])
def test_the_eleventh_immediate_retry_in_a_row_waits_a_second(queue: FairQueue, delay: float) -> None:
    queue.push(task("a"), now=NOW)
    assert waits(queue, [delay] * 13) == [delay] * 10 + [1.0] * 3


def test_a_retry_with_a_longer_delay_resets_the_count(queue: FairQueue) -> None:
    queue.push(task("a"), now=NOW)
    given = [1.0] * 15 + [0] * 9 + [1.0] + [0] * 11
    assert waits(queue, given) == [1.0] * 15 + [0] * 9 + [1.0] + [0] * 10 + [1.0]


def test_a_task_with_a_thousand_immediate_retries_becomes_a_dead_letter_that_can_be_requeued(queue: FairQueue) -> None:
    task_id = queue.push(task("a", max_retries=5), now=NOW).task_id
    assert len(waits(queue, [0] * 1000)) == 1000
    now = NOW + 2000
    lease = pop(queue, now)
    outcome = Outcome.retry(lease, "not yet", delay=0)
    assert queue.settle([outcome], now=now).statuses == ["dead"]
    assert queue.settle([outcome], now=now).statuses == ["dead"]  # the reply was lost
    (letter,) = queue.dlq.list().items
    assert "Retry was raised 1000 times in a row with a delay below 1 second: not yet" in letter.reason
    assert queue.get_task(task_id).state is TaskState.FAILED
    assert queue.dlq.requeue(letter.entry_id, now=now)
    assert waits(queue, [0] * 11, now) == [0] * 10 + [1.0]
