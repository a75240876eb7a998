"""A worker keeps the leases that it names and gives back all others that the server has recorded for it."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.model.errors import StaleLeaseError, TaskValidationError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.operations import ScriptCall
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task


def test_a_reconciliation_releases_all_but_the_named_leases(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 5)
    leases = queue.pop_batch(5, "w", now=NOW)
    others = push_many(queue, "b", 1)
    (foreign,) = queue.pop_batch(1, "another", now=NOW)
    assert queue.reconcile_worker("w", [leases[1].token, leases[3].token], reason="it never came", now=NOW) == 3
    again = queue.pop_batch(5, "other", now=NOW)
    assert [lease.task_id for lease in again] == [ids[0], ids[2], ids[4]]
    assert [lease.delivery for lease in again] == [1, 1, 1], "none of them counts as a delivery"
    history = queue.history(ids[0])
    assert [(attempt.kind, attempt.error) for attempt in history] == [("released", "it never came")]
    for at in (1, 3):
        queue.finish(leases[at], now=NOW)
    with pytest.raises(StaleLeaseError):
        queue.finish(leases[0], now=NOW)
    assert foreign.task_id == others[0]
    queue.finish(foreign, now=NOW)


def test_a_reconciliation_without_tokens_releases_all_leases(queue: FairQueue) -> None:
    push_many(queue, "a", 3)
    queue.pop_batch(3, "w", now=NOW)
    assert queue.reconcile_worker("w", [], now=NOW) == 3
    assert queue.reconcile_worker("w", [], now=NOW) == 0


def test_a_reconciliation_releases_more_leases_than_fit_into_one_call(make_queue: MakeQueue) -> None:
    queue = make_queue(sweep_batch_size=10)
    ids = push_many(queue, "a", 25)
    kept = {lease.token for lease in queue.pop_batch(25, "w", now=NOW)[::5]}
    assert queue.reconcile_worker("w", kept, now=NOW) == 20
    assert [task.state for task in map(queue.get_task, ids)].count(TaskState.STARTED) == 5


def test_critical_tasks_keep_their_order_after_a_reconciliation(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 4, priority=6)
    queue.pop_batch(3, "w", now=NOW)
    queue.reconcile_worker("w", [], now=NOW)
    assert [lease.task_id for lease in queue.pop_batch(4, "w", now=NOW)] == ids


def test_a_delayed_copy_of_a_reconciliation_releases_nothing(queue: FairQueue, redis: Redis) -> None:
    """A call over a connection that was given up may be carried out after the worker has fetched new tasks."""
    push_many(queue, "a", 2)
    pop(queue)
    steps = leasing.reconcile_worker(queue._shards, "w", [], "the reply was lost", NOW)
    call = next(steps)
    assert isinstance(call, ScriptCall)
    request = ("FCALL", scripts.load(call.script).function, len(call.keys), *call.keys, *call.args)
    assert redis.execute_command(*request) == [1, 0]
    new = pop(queue)
    assert redis.execute_command(*request) == [1, 0]
    assert queue.get_task(new.task_id).state is TaskState.STARTED
    queue.finish(new, now=NOW)


def test_lease_tokens_of_different_shards_are_separate(make_queue: MakeQueue) -> None:
    queue = make_queue(shards=2)
    with pytest.raises(TaskValidationError, match="call reconcile_worker of the shard"):
        queue.reconcile_worker("w", [1], now=NOW)
    queue.push(task("a"), now=NOW)
    assert queue.pop("w", now=NOW) is not None
    assert queue.reconcile_worker("w", [], now=NOW) == 1
