"""Bounds for each user on the data of ended tasks: bytes of results, and complete dead letters."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, pop, task
from tests.user_records import change_record, number_of

P = "fq:{default:0}:"
LARGE = "x" * 1998
"""A result of 2,000 bytes as JSON."""


def finish(queue: FairQueue, user: str, at: float, result: Any = LARGE, **options: Any) -> str:
    """Run a task to its end; its id."""
    pushed = queue.push(task(user, **options), now=NOW + at).task_id
    lease = pop(queue, NOW + at, users=[user])
    assert lease.task.task_id == pushed
    queue.finish(lease, result, now=NOW + at)
    return pushed


def failure(text: str) -> ValueError:
    """An error with a traceback."""
    error = ValueError(text)
    with contextlib.suppress(ValueError):
        raise error
    return error


def fail(queue: FairQueue, user: str, at: float, error: str = "it failed", **options: Any) -> str:
    pushed = queue.push(task(user, **options), now=NOW + at).task_id
    queue.settle([Outcome.fail(pop(queue, NOW + at, users=[user]), failure(error), delay=None)], now=NOW + at)
    return pushed


def kept_results(queue: FairQueue, ids: list[str]) -> list[bool]:
    return [queue.get_task(task_id).result is not None for task_id in ids]


def test_the_limit_of_results_removes_the_user_s_oldest(make_queue: MakeQueue) -> None:
    queue = make_queue(max_result_bytes=6000)
    other = finish(queue, "b", 0)
    small = finish(queue, "a", 0, "x" * 900)
    ids = [finish(queue, "a", at) for at in range(1, 6)]
    assert kept_results(queue, ids) == [False, False, True, True, True]
    assert kept_results(queue, [other, small]) == [True, True]
    removed = queue.get_task(ids[0])
    assert (removed.state, removed.result_bytes_removed) == (TaskState.FINISHED, 2000)
    assert queue.get_task(ids[4]).result_bytes_removed == 0
    assert queue.get_stats().totals["results_removed"] == 2


def test_a_result_without_room_is_not_kept(make_queue: MakeQueue) -> None:
    queue = make_queue(max_result_bytes=1500)
    ids = [finish(queue, "a", at) for at in range(2)]
    assert kept_results(queue, ids) == [False, False]
    assert queue.get_task(ids[1]).result_bytes_removed == 2000
    assert kept_results(queue, [finish(queue, "a", 3, "x" * 1200)]) == [True]


def test_one_call_may_store_more_results_than_the_limit_allows(make_queue: MakeQueue) -> None:
    queue = make_queue(max_result_bytes=6000)
    queue.push_batch([task("a") for _ in range(8)], now=NOW)
    leases = queue.pop_batch(8, "w", now=NOW)
    outcomes = [Outcome.finish(lease, LARGE) for lease in leases]
    queue.settle(outcomes, now=NOW)
    queue.settle(outcomes, now=NOW)
    assert sum(kept_results(queue, [lease.task.task_id for lease in leases])) == 3
    assert queue.get_stats().totals["results_removed"] == 5


def test_removed_results_free_room_for_new_ones(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(max_result_bytes=4000, result_ttl=100)
    ids = [finish(queue, "a", 0), finish(queue, "a", 50)]
    queue.sweep(now=NOW + 101)
    with pytest.raises(TaskNotFoundError):
        queue.get_task(ids[0])
    ids.append(finish(queue, "a", 102))
    assert kept_results(queue, ids[1:]) == [True, True]
    queue.sweep(now=NOW + 500)
    assert number_of(redis, P + "user:a", "result_bytes") == 0
    assert not redis.exists(P + "results:a")
    queue.sweep(now=NOW + 5000)
    assert not redis.exists(P + "user:a"), "an idle user without results is forgotten"


def test_the_new_result_of_a_task_that_runs_again_replaces_its_old_one(make_queue: MakeQueue) -> None:
    queue = make_queue(max_result_bytes=4000)
    first = finish(queue, "a", 0)
    for at in range(1, 5):
        finish(queue, "a", at, task_id="chosen")
    assert kept_results(queue, [first, "chosen"]) == [True, True]


def test_dead_letters_beyond_the_limit_are_stored_without_their_payload(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(max_dead_letters=2)
    complete = [fail(queue, "a", at, payload="p" * 5000) for at in range(2)]
    large = fail(queue, "a", 3, "é" * 5000, payload="p" * 5000)
    small = fail(queue, "a", 4, payload="p" * 500)
    fail(queue, "b", 4, payload="p" * 5000)
    assert [queue.get_task(task_id).payload_bytes_removed for task_id in (*complete, large, small)] == [0, 0, 5026, 0]
    assert queue.get_task(small).payload == "p" * 500
    assert redis.strlen(P + "payload:" + large) < 600
    letter = next(entry for entry in queue.dlq.list() if entry.original_task.task_id == large)
    assert letter.reason.startswith("ValueError: éé")
    assert "complete dead letters, as many as max_dead_letters" in letter.reason
    assert len(letter.reason) < 500
    (attempt,) = queue.history(large)
    assert attempt.traceback == ""
    assert queue.history(complete[0])[0].traceback
    assert queue.get_stats().totals["dead_letters_shortened"] == 2


def test_a_dead_letter_without_its_payload_needs_a_new_one_to_be_requeued(make_queue: MakeQueue) -> None:
    queue = make_queue(max_dead_letters=1)
    fail(queue, "b", 0)
    fail(queue, "a", 0)
    large, small = fail(queue, "a", 1, payload="p" * 5000), fail(queue, "a", 2, payload="small")
    with pytest.raises(TaskValidationError, match=r"payload \(5,026 bytes\) was removed .* max_dead_letters"):
        queue.dlq.requeue(f"{large}~1", now=NOW + 3)
    assert queue.dlq.requeue(f"{small}~1", now=NOW + 3) == small
    assert queue.dlq.requeue(f"{large}~1", "new", now=NOW + 4) == large
    assert [queue.get_task(task_id).payload for task_id in (small, large)] == ["small", "new"]
    assert queue.dlq.requeue_all(now=NOW + 5) == 2


def test_requeuing_all_skips_dead_letters_without_payload(make_queue: MakeQueue) -> None:
    queue = make_queue(max_dead_letters=1)
    ids = [fail(queue, "a", at, payload="p" * 5000) for at in range(3)]
    assert queue.dlq.requeue_all(now=NOW + 5) == 1
    assert [queue.get_task(task_id).state.value for task_id in ids] == ["queued", "failed", "failed"]


def test_a_result_limit_of_0_means_no_limit(make_queue: MakeQueue) -> None:
    queue = make_queue(max_result_bytes=0, max_dead_letters=0)
    ids = [finish(queue, "a", at) for at in range(3)]
    assert kept_results(queue, ids) == [True] * 3
    assert not queue.get_task(fail(queue, "a", 5, payload="p" * 5000)).payload_bytes_removed


def test_a_settle_without_a_large_result_costs_no_command_more(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue()
    queue.push_batch([task("a") for _ in range(20)], now=NOW)
    leases = queue.pop_batch(20, "w", now=NOW)
    for _ in range(3):
        queue.finish(leases.pop(), None, now=NOW)

    def cost(result: Any) -> int:
        return min(commands(redis, lambda: queue.finish(leases.pop(), result, now=NOW + 1)) for _ in range(4))

    without = cost(None)
    assert cost("x" * 900) == without
    assert cost(LARGE) <= without + 1


@pytest.mark.parametrize("seed", range(4))
def test_counters_of_stored_results_equal_the_stored_sizes(make_queue: MakeQueue, redis: Redis, seed: int) -> None:
    """`check_invariants`, which `make_queue` also runs at the end, compares the counters with the stored results."""
    chance = random.Random(seed)
    queue = make_queue(max_result_bytes=7000, max_dead_letters=3, result_ttl=100, failed_ttl=150)
    at = 0.0
    for _ in range(120):
        at += chance.choice([0, 1, 10, 60])
        user, chosen = chance.choice("ab"), chance.choice([{}, {"task_id": f"t{chance.randrange(3)}"}])
        if chosen:
            chosen["task_id"] += user
        step = chance.randrange(7)
        if step < 2:
            finish(queue, user, at, "x" * chance.choice([10, 1500, 4000, 9000]), **chosen)
        elif step < 4:
            fail(queue, user, at, payload="p" * chance.choice([1, 2000]), **chosen)
        elif step == 4 and (letters := list(queue.dlq.list())):
            letter = chance.choice(letters)
            act = chance.choice([queue.dlq.requeue_many, queue.dlq.discard_many])
            act([letter.entry_id], now=NOW + at)
        elif step == 5:
            queue.user(user).purge(now=NOW + at)
        else:
            queue.sweep(now=NOW + at)
        while (lease := queue.pop("w", now=NOW + at)) is not None:
            queue.finish(lease, LARGE, now=NOW + at)
        if chance.random() < 0.1:
            assert queue.check_invariants() == []
    for user in "ab":
        change_record(redis, P + f"user:{user}", result_bytes=chance.randrange(10**6), dead=77)
        redis.zadd(P + f"results:{user}", {"nothing": 1})
    assert queue.check_invariants() != []
    queue.repair(now=NOW + at)
    assert queue.check_invariants() == []
    queue.sweep(now=NOW + at + 1000)
    queue.sweep(now=NOW + at + 1001)
    assert [number_of(redis, P + f"user:{user}", "result_bytes") for user in "ab"] == [0, 0]
    assert [number_of(redis, P + f"user:{user}", "dead") for user in "ab"] == [0, 0]
