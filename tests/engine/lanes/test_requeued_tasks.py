"""Dead letters come back in the lane that the operator chooses."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lanes import LANES, Lane
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task


def bury(queue: FairQueue, lane: Lane = "normal", priority: Priority = Priority.NORMAL) -> str:
    made = task("ann", int(priority), lane=lane)
    queue.push(made, now=NOW)
    queue.fail(pop(queue, users=["ann"]), "no", retry=False, now=NOW)
    return f"{made.task_id}~1"


@pytest.mark.parametrize("chosen", LANES)
@pytest.mark.parametrize("before", [*LANES, Priority.CRITICAL, Priority.LOW])
def test_a_dead_letter_is_requeued_in_the_chosen_lane(queue: FairQueue, before: Lane | Priority, chosen: Lane) -> None:
    of_lane_normal = isinstance(before, Priority)
    entry = bury(queue, priority=before) if isinstance(before, Priority) else bury(queue, before)
    queue.dlq.requeue(entry, lane=chosen, now=NOW + 1)
    found = queue.get_task(entry[:-2])
    assert found.lane == chosen
    assert found.priority == (before if of_lane_normal and chosen == "normal" else Priority.NORMAL)
    assert {lane: figures.ready for lane, figures in queue.get_stats().lanes.items()} == {
        lane: int(lane == chosen) for lane in LANES
    }
    assert queue.check_invariants() == []
    assert pop(queue).lane == chosen


def test_an_urgent_dead_letter_starts_before_tasks_of_other_users(queue: FairQueue) -> None:
    first, second = bury(queue), bury(queue)
    queue.push_batch([task("bob") for _ in range(3)], now=NOW)
    queue.dlq.requeue(first, lane="bulk", now=NOW)
    queue.dlq.requeue(second, {"new": 1}, lane="urgent", now=NOW)
    leases = queue.pop_batch(5, "w", now=NOW)
    assert [lease.lane for lease in leases] == ["urgent", "normal", "normal", "normal", "bulk"]
    assert (leases[0].payload, leases[4].task_id) == ({"new": 1}, first[:-2])


def test_several_dead_letters_are_requeued_in_one_lane(queue: FairQueue) -> None:
    entries = [bury(queue, lane) for lane in ("urgent", "normal", "bulk", "normal")]
    assert queue.dlq.requeue_many(entries[:2], lane="bulk", now=NOW) == 2
    assert queue.dlq.requeue_all(lane="urgent", now=NOW) == 2
    assert [queue.get_task(entry[:-2]).lane for entry in entries] == ["bulk", "bulk", "urgent", "urgent"]


@pytest.mark.parametrize("payload", [None, 1])
def test_an_unknown_lane_is_refused(queue: FairQueue, payload: Any) -> None:
    wrong: Any = "fast"
    entry = bury(queue)
    for requeue in (queue.dlq.requeue_all, lambda *args, **more: queue.dlq.requeue(entry, *args, **more)):
        with pytest.raises(TaskValidationError, match="lane must be one of urgent, normal, bulk, got 'fast'"):
            requeue(payload, lane=wrong, now=NOW)
    assert queue.dlq.count() == 1
