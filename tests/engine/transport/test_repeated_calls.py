"""A call whose reply was lost is sent again as it was: one effect, and the reply of the first time."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.dead_letters import dead_letters as dlq
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.lease import leases_of_reply
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Operation
from tests.engine.conftest import NOW, pop, push_many, task


def repeated(queue: FairQueue, steps: Operation[Any]) -> tuple[Any, Any, Any]:
    """Send the first call of ``steps`` twice; both replies, and what the steps make of the second."""
    request = next(steps)
    first = queue._transport.send(request)
    second = queue._transport.send(request)
    try:
        steps.send(second)
    except StopIteration as stop:
        return first, second, stop.value
    raise AssertionError("more than one call")


def counts(queue: FairQueue) -> dict[str, int]:
    stats = queue.get_stats()
    return {**stats.states, **stats.totals}


def test_a_repeated_push_has_one_effect_and_the_first_reply(queue: FairQueue) -> None:
    commands = queue._shards.home
    commands.has_written_fingerprint = True  # else the first push writes it before its call
    for made in (task("a"), task("a", task_id="chosen"), task("a", unique_key="k", unique_for=9)):
        first, second, result = repeated(queue, pushing.push_to_shard(commands, made, NOW))
        assert first == second
        assert result.accepted
    assert counts(queue)["pushed"] == 3


def test_a_repeated_pop_has_one_effect_and_the_first_reply(queue: FairQueue) -> None:
    push_many(queue, "a", 5)
    first, second, leases = repeated(queue, leasing.pop_batch_from_shard(queue._shards.home, Fetch(3, "w"), NOW))
    assert first[5:] == second[5:]
    assert len(leases) == 3
    assert counts(queue)["started"] == 3


def test_a_repeated_pop_returns_the_last_task_again(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    first, second, _ = repeated(queue, leasing.pop_batch_from_shard(queue._shards.home, Fetch(3, "w"), NOW))
    assert first[5:] == second[5:]


def test_a_repeated_pop_returns_only_what_is_still_leased(queue: FairQueue) -> None:
    push_many(queue, "a", 2)
    steps = leasing.pop_batch_from_shard(queue._shards.home, Fetch(2, "w"), NOW)
    request = next(steps)
    first, second = leases_of_reply(queue._transport.send(request), 5, "w", NOW, 0)
    queue.cancel(first.task_id, now=NOW)
    (left,) = leases_of_reply(queue._transport.send(request), 5, "w", NOW, 0)
    assert left.key == second.key


@pytest.mark.parametrize("kind", ["finish", "fail", "later", "dead", "discard", "release", "crash", "poison"])
def test_a_repeated_settle_has_one_effect_and_the_first_reply(queue: FairQueue, kind: str) -> None:
    push_many(queue, "a", 4)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    outcome = {
        "finish": Outcome.finish(lease, 1),
        "fail": Outcome.fail(lease, "x", delay=5),
        "later": Outcome.retry(lease, "x", delay=5),
        "dead": Outcome.fail(lease, "x", delay=None),
        "discard": Outcome.discard(lease, "x"),
        "release": Outcome.release(lease),
        "crash": Outcome.crash(lease, "x"),
        "poison": Outcome.poison(lease, "x"),
    }[kind]
    first, second, settled = repeated(queue, leasing.settle_on_shard(queue._shards.home, [outcome], Fetch(2, "w"), NOW))
    assert first[5:] == second[5:]
    assert settled.statuses != ["stale"]
    assert counts(queue)["started"] == 3  # once before, and two with the outcome
    assert queue.get_queue_sizes("a").running == 2


def test_repeated_cancels_requeues_and_discards_have_one_effect(queue: FairQueue) -> None:
    ids = push_many(queue, "a", 3)
    first, second, code = repeated(queue, lookup.cancel(queue._shards, ids[0], "", NOW))
    assert (first, second, code) == (b"1", b"1", True)
    for lease in queue.pop_batch(2, "w", now=NOW):
        queue.fail(lease, "x", retry=False, now=NOW)
    first, second, _ = repeated(queue, dlq.requeue(queue._shards, f"{ids[1]}~1", None, "urgent", NOW))
    assert (first, second) == (b"1", b"1")
    first, second, _ = repeated(queue, dlq.discard(queue._shards, f"{ids[2]}~1", NOW))
    assert (first, second) == (b"1", b"1")
    assert counts(queue)["requeued"] == counts(queue)["discarded"] == 1


def test_a_repeated_heartbeat_returns_the_cancellation_again(queue: FairQueue) -> None:
    (task_id,) = push_many(queue, "a", 1)
    lease = queue.pop("w", now=NOW)
    queue.cancel(task_id, now=NOW)
    _, _, beat = repeated(queue, leasing.heartbeat(queue._shards, "w", {}, None, 60, None, NOW))
    assert lease is not None
    assert beat.revoked == [lease.key]
    assert queue.heartbeat("w", {}, now=NOW).revoked == []


def test_two_different_outcomes_for_one_lease_count_once(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    settled = queue.settle([Outcome.finish(lease), Outcome.fail(lease, "x", delay=1)], now=NOW)
    assert settled.statuses == ["finished", "stale"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_outcome_of_an_earlier_run_does_not_affect_the_present_run(queue: FairQueue, order: int) -> None:
    leases = []
    for number in range(2):
        queue.push(task("a", task_id="x", payload=number), now=NOW)
        leases += queue.pop_batch(1, "w", now=NOW)
        if not number:
            queue.cancel("x", now=NOW)
    settled = queue.settle([Outcome.release(leases[0]), Outcome.finish(leases[1])][::order], now=NOW)
    assert settled.statuses == ["stale", "finished"][::order]
    assert queue.get_task("x").state is TaskState.FINISHED


def test_a_chosen_id_is_a_duplicate_until_it_ends(queue: FairQueue) -> None:
    assert queue.push(task("a", task_id="x", payload=1), now=NOW).accepted
    assert queue.push(task("a", task_id="x", payload=2), now=NOW).duplicate
    assert queue.push_batch([task("a", task_id="y"), task("a", task_id="y")], now=NOW)[1].duplicate
    lease = pop(queue)
    assert queue.push(task("a", task_id="x"), now=NOW).duplicate
    queue.finish(lease, now=NOW)
    assert queue.push(task("a", task_id="x", payload=3), now=NOW).accepted
    assert queue.get_task("x").payload == 3


def died(queue: FairQueue, **options: Any) -> str:
    """The entry of a task with the id "x", which has died."""
    assert queue.push(task(task_id="x", max_retries=0, **options), now=NOW).accepted
    lease = pop(queue)
    queue.fail(lease, f"no {lease.payload}", now=NOW)
    (entry,) = queue.dlq.list()
    return entry.entry_id


@pytest.mark.parametrize("how", ["push", "push_batch", "push_graph"])
def test_a_new_task_with_the_chosen_id_of_a_dead_letter_replaces_it(queue: FairQueue, how: str) -> None:
    """The dead letter is removed and its history stays, as docs/guides/retries-and-errors.md describes."""
    entry = died(queue, user="a", payload=1)
    queue.push(task("a", task_id="waits", depends_on=["x"]), now=NOW)
    again = task("a", task_id="x", payload=2, max_retries=0)
    pushed = queue.push(again, now=NOW) if how == "push" else getattr(queue, how)([again], now=NOW)[0]
    assert pushed.accepted
    assert (list(queue.dlq.list()), queue.dlq.count(), queue.dlq.of_task("x")) == ([], 0, None)
    for act in (queue.dlq.get, queue.dlq.requeue, queue.dlq.discard):
        with pytest.raises(TaskNotFoundError, match="no dead letter 'x~1'"):
            act(entry)
    fresh = queue.get_task("x")
    assert (fresh.state, fresh.user_id, fresh.payload, fresh.retry_count) == (TaskState.QUEUED, "a", 2, 0)
    assert {"requeued", "discarded"} & counts(queue).keys() == set()

    queue.fail(pop(queue), "no 2", now=NOW)
    (letter,) = queue.dlq.list()
    assert (letter.entry_id, [attempt.error for attempt in letter.retry_history]) == ("x~2", ["no 1", "no 2"])
    assert queue.get_task("waits").state is TaskState.DEFERRED
    queue.push(task("a", task_id="x"), now=NOW)
    queue.finish(pop(queue), now=NOW)
    assert queue.get_task("waits").state is TaskState.QUEUED


def test_a_repeated_push_with_a_generated_id_leaves_its_dead_letter(queue: FairQueue) -> None:
    made = task("a", max_retries=0)
    queue.push(made, now=NOW)
    queue.fail(pop(queue), "no", now=NOW)
    assert queue.push(made, now=NOW).accepted  # this repeats the first push, which was accepted
    assert counts(queue)["pushed"] == 1
    assert [entry.entry_id for entry in queue.dlq.list()] == [f"{made.task_id}~1"]


def test_a_unique_task_is_refused_within_its_window(queue: FairQueue) -> None:
    first = queue.push(task("a", unique_key="k", unique_for=10), now=NOW)
    again = queue.push(task("a", unique_key="k", unique_for=10), now=NOW + 9)
    assert (again.status, again.task_id) == ("duplicate", first.task_id)
    assert queue.push(task("a", unique_key="other", unique_for=10), now=NOW + 9).accepted
    assert queue.push(task("a", unique_key="k", unique_for=10), now=NOW + 10).accepted


def test_a_canceled_task_frees_its_unique_key(queue: FairQueue) -> None:
    first = queue.push(task("a", unique_key="k", unique_for=10), now=NOW)
    queue.cancel(first.task_id, now=NOW)
    assert queue.push(task("a", unique_key="k", unique_for=10), now=NOW).accepted


def test_a_debounced_task_keeps_the_last_payload_and_waits_again(queue: FairQueue) -> None:
    first = queue.push(task("a", payload=1, unique_key="k", debounce=10), now=NOW)
    second = queue.push(task("a", payload=2, unique_key="k", debounce=10), now=NOW + 6)
    assert second.task_id == first.task_id
    assert queue.pop("w", now=NOW + 15) is None
    assert pop(queue, NOW + 16).payload == 2
    assert queue.push(task("a", payload=3, unique_key="k", debounce=10), now=NOW + 16).accepted
    in_one = [task("b", payload=n, unique_key="j", debounce=5) for n in range(3)]
    results = queue.push_batch(in_one, now=NOW + 16)
    assert {result.task_id for result in results} == {in_one[0].task_id}
    assert queue.get_task(in_one[0].task_id).payload == 2


def test_debounce_keeps_the_last_moment_to_start(queue: FairQueue) -> None:
    same: dict[str, Any] = {"unique_key": "k", "debounce": 10}
    first = queue.push(task("a", expires_at=NOW + 15, **same), now=NOW).task_id
    queue.push(task("a", expires_at=NOW + 23, **same), now=NOW + 8)
    queue.sweep(now=NOW + 18)
    assert queue.get_task(first).state is TaskState.QUEUED
    queue.pop("w", now=NOW + 18)
    (in_one, _) = queue.push_batch([task("b", expires_at=NOW + 30, **same), task("b", **same)], now=NOW + 20)
    assert queue.get_task(in_one.task_id).expires_at is None
    queue.push(task("b", expires_at=NOW + 40, **same), now=NOW + 21)
    assert queue.get_task(in_one.task_id).expires_at == NOW + 40


def test_debounced_tasks_that_wait_for_dependencies_keep_the_last_payload(queue: FairQueue) -> None:
    same: dict[str, Any] = {"unique_key": "k", "debounce": 10, "depends_on": ["parent"]}
    queue.push(task("a", task_id="parent"), now=NOW)
    ids = {queue.push(task("a", payload=n, expires_at=NOW + 50 + n, **same), now=NOW + n).task_id for n in range(3)}
    (only,) = ids
    assert queue.get_task(only).state is TaskState.DEFERRED
    queue.finish(pop(queue, NOW + 5), now=NOW + 6)
    assert queue.pop("w", now=NOW + 11) is None  # ten seconds after the last call
    assert pop(queue, NOW + 12).payload == 2
    assert queue.get_task(only).expires_at == NOW + 52


def test_a_started_task_is_not_debounced(queue: FairQueue) -> None:
    same: dict[str, Any] = {"unique_key": "k", "debounce": 60}
    first = queue.push(task("a", payload=1, **same), now=NOW).task_id
    queue.run_now(first, now=NOW + 1)
    queue.fail(pop(queue, NOW + 1), "x", now=NOW + 2)
    assert queue.get_task(first).state is TaskState.SCHEDULED  # the task waits for its retry
    assert queue.push(task("a", payload=2, **same), now=NOW + 2.5).accepted
    assert queue.get_task(first).payload == 1


def test_lost_scripts_are_loaded_again(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 1)
    redis.script_flush()
    assert queue.pop("w", now=NOW) is not None
