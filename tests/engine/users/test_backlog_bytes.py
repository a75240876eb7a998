"""A limit on the bytes of one user's tasks that have not ended, and on those of recorded replies."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import BacklogFullError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task

SIZE = 1502
"""The size of a task whose payload has a thousand letters and two quotation marks; a signature adds a few bytes."""
SMALL = 503
ROOM = 3 * SIZE + 150


def large(user: str = "a", **options: Any) -> Any:
    return task(user, payload="x" * 1000, **options)


@pytest.fixture(params=["user", "queue"])
def limited(redis: Redis, request: pytest.FixtureRequest) -> FairQueue:
    """Three such tasks fit."""
    if request.param == "queue":
        return FairQueue(redis, config=QueueConfig(max_backlog_bytes=ROOM))
    queue = FairQueue(redis)
    queue.user("a").set_max_backlog_bytes(ROOM, now=NOW)
    return queue


def about(size: int) -> Any:
    return pytest.approx(size, abs=100 if size else 0)


def taken(queue: FairQueue) -> int:
    assert queue.check_invariants() == []
    return queue.user("a").stats(now=NOW).backlog_bytes


def test_pushes_beyond_the_limit_of_backlog_bytes_are_refused(limited: FairQueue) -> None:
    queue = limited
    kinds: list[dict[str, Any]] = [{}, {"execute_after": NOW + 9}, {"priority": 6}]
    queue.push_batch([large(**kind) for kind in kinds], now=NOW)
    assert taken(queue) == about(3 * SIZE)
    with pytest.raises(BacklogFullError, match="max_backlog_bytes"):
        queue.push(task("a"), now=NOW)
    with pytest.raises(BacklogFullError, match="1 of 2"):
        queue.push_batch([large(), task("b")], now=NOW)
    with pytest.raises(BacklogFullError, match="2 of 2 tasks"):
        queue.push_batch([large(task_id="p"), large(depends_on=["p"])], now=NOW)
    assert taken(queue) == about(3 * SIZE)


def test_the_bytes_of_a_bulk_push_are_counted_before_it_is_accepted(limited: FairQueue) -> None:
    with pytest.raises(BacklogFullError, match="7 of 10"):
        limited.push_batch([large() for _ in range(10)], now=NOW)
    assert taken(limited) == about(3 * SIZE)


def test_every_end_of_a_task_frees_its_backlog_bytes(limited: FairQueue) -> None:
    queue, now = limited, NOW
    for end in ("finish", "discard", "dead", "poison", "later", "release", "crash"):
        queue.push(large(), now=now)
        lease = pop(queue, now)
        assert taken(queue) == about(SIZE)
        outcome = {
            "finish": Outcome.finish(lease, 1),
            "discard": Outcome.discard(lease, "x"),
            "dead": Outcome.fail(lease, "x", delay=None),
            "poison": Outcome.poison(lease, "x"),
            "later": Outcome.retry(lease, "x", delay=5),
            "release": Outcome.release(lease),
            "crash": Outcome.crash(lease, "x"),
        }[end]
        queue.settle([outcome], now=now)
        is_alive = end in ("later", "release", "crash")
        assert taken(queue) == about(SIZE * is_alive)
        if is_alive:
            assert queue.cancel(lease.task_id, now=now)
        assert taken(queue) == about(0)
        now += 10
    queue.push(large(expires_at=now + 5), now=now)
    queue.push(large(execute_after=now + 50), now=now)
    queue.sweep(now=now + 6)
    assert taken(queue) == about(SIZE)
    queue.user("a").purge(now=now + 6)
    assert taken(queue) == about(0)


def test_the_bytes_of_a_requeued_dead_letter_count_again(limited: FairQueue) -> None:
    queue = limited
    queue.push(large(), now=NOW)
    queue.fail(pop(queue), "x", retry=False, now=NOW)
    assert taken(queue) == about(0)
    (letter,) = queue.dlq.list().items
    queue.dlq.requeue(letter.entry_id, now=NOW)
    assert taken(queue) == about(SIZE)
    queue.fail(pop(queue), "x", retry=False, now=NOW)
    (letter,) = queue.dlq.list().items
    queue.dlq.discard(letter.entry_id, now=NOW)
    assert taken(queue) == about(0)


def test_the_bytes_of_a_reused_id_and_a_canceled_dependent_are_freed(limited: FairQueue) -> None:
    queue = limited
    for _ in range(2):
        queue.push(large(task_id="x"), now=NOW)
        queue.push(large(task_id="waits", depends_on=["x"], on_dependency_failure="cancel"), now=NOW)
        assert taken(queue) == about(2 * SIZE)
        queue.fail(pop(queue), "x", retry=False, now=NOW)
        queue.sweep(now=NOW)
        assert taken(queue) == about(0)


def test_a_debounced_task_counts_with_its_last_payload(limited: FairQueue) -> None:
    queue = limited
    same: dict[str, Any] = {"unique_key": "k", "debounce": 5}
    queue.push(task("a", payload="x", **same), now=NOW)
    assert taken(queue) == about(SMALL)
    queue.push(large(**same), now=NOW)
    assert taken(queue) == about(SIZE)
    queue.push_batch([large(unique_key="j", debounce=5), task("a", payload="x", unique_key="j", debounce=5)], now=NOW)
    assert taken(queue) == about(SIZE + SMALL)


def test_tasks_from_before_the_limit_do_not_count(queue: FairQueue) -> None:
    queue.push_batch([large() for _ in range(5)], now=NOW)
    queue.user("a").set_max_backlog_bytes(SIZE + 50, now=NOW)
    assert taken(queue) == about(0)
    queue.push(large(), now=NOW)
    assert taken(queue) == about(SIZE)
    queue.user("a").set_max_backlog_bytes(None, now=NOW)
    queue.push(large(), now=NOW)
    assert taken(queue) == about(SIZE)
    for lease in queue.pop_batch(9, "w", now=NOW):
        queue.finish(lease, now=NOW)
    assert taken(queue) == about(0)


def test_recorded_replies_are_kept_for_a_shorter_time_when_there_are_many(queue: FairQueue, redis: Redis) -> None:
    """32 MB of them at most, but for twice the time for which calls are repeated."""

    def kept(now: float) -> int:
        queue.push(task("a"), now=now)
        before = set(redis.keys("*:reply:*"))
        assert queue.pop("w", now=now) is not None
        (key,) = set(redis.keys("*:reply:*")) - before
        return round(int(redis.pttl(key)) / 1000)

    assert kept(NOW) == 120
    for count, expected in ((4e6, 80), (8e6, 40), (100e6, 20)):
        redis.hset(
            "fq:{default:0}:stats", mapping={"revision": "", "replies": int(count), "replies_in": int((NOW + 1) // 10)}
        )
        assert kept(NOW + 1) == pytest.approx(expected, abs=1)
    assert kept(NOW + 11) == 20  # the count of the ten seconds before still holds
    assert kept(NOW + 31) == 120
