"""Pauses of users, organizations and queues with a note, and with an end that the engine's time brings."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.pauses import Pause
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, pop, push_many, task
from tests.engine.sharding.sharded import CONFIG

P = "fq:{default:0}:"
HOSTILE_NOTE = "<b>{{ x }}</b> \x1b[31m : \U0001f600"

HANDLES: dict[str, Callable[[FairQueue], Any]] = {
    "user": lambda queue: queue.user("ann"),
    "organization": lambda queue: queue.organization("acme"),
    "queue": lambda queue: queue,
}


def stats_of(handle: Any) -> Any:
    return handle.get_stats(0) if isinstance(handle, FairQueue) else handle.stats()


@pytest.fixture(params=[1, 4], ids=["one shard", "four shards"])
def queue(request: pytest.FixtureRequest, redis: Redis) -> FairQueue:
    return FairQueue(redis, config=CONFIG.model_copy(update={"shards": request.param}))


@pytest.fixture(params=HANDLES)
def handle(request: pytest.FixtureRequest, queue: FairQueue) -> Any:
    queue.user("ann").set_organization("acme", now=NOW)
    push_many(queue, "ann", 2)
    return HANDLES[request.param](queue)


def test_a_pause_and_its_note_end_at_the_end_of_the_pause(queue: FairQueue, handle: Any) -> None:
    handle.pause(note="  overloads\nthe mail server ", until=NOW + 60, now=NOW)
    assert stats_of(handle).pause == Pause("overloads the mail server", NOW + 60)
    assert queue.check_invariants() == []
    assert queue.pop("w", now=NOW + 59.9) is None
    assert stats_of(handle).paused
    assert len(queue.pop_batch(9, "w", now=NOW + 60)) == 2
    assert not stats_of(handle).paused
    assert stats_of(handle).pause is None
    assert queue.check_invariants() == []


def test_a_sweep_ends_a_pause_and_wakes_workers(queue: FairQueue, handle: Any) -> None:
    handle.pause(until=NOW + 60, now=NOW)
    assert queue.wait_for_work(0.01), "for the push: a worker takes its marker"
    assert not queue.wait_for_work(0.01)
    looked = queue.sweep(now=NOW + 1)
    assert looked.look_at == NOW + 60
    queue.sweep(now=NOW + 60)
    assert queue.wait_for_work(1)
    assert queue.check_invariants() == []


def test_a_new_pause_replaces_the_former_note_and_end(queue: FairQueue, handle: Any) -> None:
    handle.pause(note="a", until=NOW + 60, now=NOW)
    handle.resume(now=NOW + 1)
    assert stats_of(handle).pause is None
    handle.pause(note="b", until=NOW + 60, now=NOW + 2)
    handle.pause(now=NOW + 3)
    assert stats_of(handle).pause == Pause()
    assert queue.check_invariants() == []
    queue.sweep(now=NOW + 61)
    assert queue.pop("w", now=NOW + 61) is None
    handle.pause(until=NOW + 90, now=NOW + 62)
    assert queue.pop("w", now=NOW + 90) is not None


def test_an_end_is_a_unix_time_a_datetime_or_a_timedelta(queue: FairQueue, handle: Any) -> None:
    handle.pause(until=datetime.fromtimestamp(NOW + 60, timezone.utc), now=NOW)
    assert stats_of(handle).pause.until == NOW + 60
    handle.pause(note=HOSTILE_NOTE, until=timedelta(hours=1))
    assert stats_of(handle).pause.note == HOSTILE_NOTE
    for mistake, message in (
        ({"until": NOW - 1}, "until must be later than now"),
        ({"until": "tomorrow"}, "until must be seconds since the epoch"),
        ({"until": datetime(2040, 1, 1)}, "until must be an aware datetime"),  # noqa: DTZ001
        ({"until": float("nan")}, "until must be a moment"),
        ({"note": "x" * 201}, "note must have at most 200 characters, got 201"),
        ({"note": b"x"}, "note must be a string"),
        ({"note": "\ud800"}, "note must be encodable"),
    ):
        with pytest.raises(TaskValidationError, match=message):
            handle.pause(**{"now": NOW, **mistake})
    assert stats_of(handle).pause.note == HOSTILE_NOTE


def test_a_length_of_time_counts_from_the_time_of_the_engine(queue: FairQueue, handle: Any) -> None:
    handle.pause(until=timedelta(seconds=60), now=NOW + 1)
    assert stats_of(handle).pause.until == NOW + 61
    assert queue.check_invariants() == []
    with pytest.raises(TaskValidationError, match="until must be a number of seconds from 0"):
        handle.pause(until=timedelta(seconds=-1))


def test_a_length_of_time_counts_from_the_clock_of_the_server(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    user, before = FairQueue(redis).user("ann"), time.time()
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: before - 600)
        user.pause(until=timedelta(seconds=60))
    pause = user.stats().pause
    assert pause is not None
    assert pause.until is not None
    assert before + 59 <= pause.until <= time.time() + 61


def test_a_pause_with_an_end_costs_a_pop_no_commands(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "other", 9)
    push_many(queue, "ann", 2)
    queue.pop("w", now=NOW)
    before = commands(redis, lambda: queue.pop("w", now=NOW))
    queue.user("ann").pause(until=NOW + 60, now=NOW)
    queue.organization("acme").pause(until=NOW + 60, now=NOW)
    assert commands(redis, lambda: queue.pop("w", now=NOW)) <= before


class TestWithARate:
    """A user that its rate holds, and whose pause has an end, is waited for twice."""

    @pytest.fixture
    def queue(self, redis: Redis) -> FairQueue:
        queue = FairQueue(redis)
        queue.user("ann").set_rate("1/60s", now=NOW)
        push_many(queue, "ann", 3)
        assert queue.pop("w", now=NOW) is not None
        return queue

    @pytest.mark.parametrize(("end", "starts"), [(30, 60), (90, 90)])
    def test_a_paused_user_with_a_rate_waits_for_both(self, queue: FairQueue, end: float, starts: float) -> None:
        queue.user("ann").pause(until=NOW + end, now=NOW + 1)
        for moment in (NOW + 2, NOW + end - 1, NOW + starts - 1):
            queue.sweep(now=moment)
            assert queue.check_invariants() == []
            assert queue.pop("w", now=moment) is None
        assert queue.pop("w", now=NOW + starts) is not None
        assert queue.check_invariants() == []

    def test_a_pause_keeps_its_end_without_a_rate(self, queue: FairQueue) -> None:
        queue.user("ann").pause(until=NOW + 90, now=NOW + 1)
        queue.user("ann").set_rate(None, now=NOW + 2)
        assert queue.check_invariants() == []
        assert queue.wait_reason(queue.tasks("queued").items[0].task_id).user_free_at is None
        assert queue.pop("w", now=NOW + 89) is None
        assert queue.pop("w", now=NOW + 90) is not None

    def test_a_pause_keeps_its_end_after_a_release(self, queue: FairQueue) -> None:
        (lease,) = queue.tasks("started").items
        queue.user("ann").pause(until=NOW + 30, now=NOW + 1)
        queue.release_worker("w", now=NOW + 2)
        assert queue.check_invariants() == []
        assert queue.pop("w", now=NOW + 29) is None
        assert pop(queue, NOW + 30).task_id == lease.task_id


class TestRepair:
    @pytest.mark.parametrize(
        "entry", [b"ann", b"\xffacme", b"\xffnobody", b"bolt"], ids=["user", "organization", "unknown", "not paused"]
    )
    @pytest.mark.parametrize("score", [None, 9e15], ids=["missing", "too late"])
    def test_a_repair_restores_the_lost_end_of_a_pause(self, redis: Redis, entry: bytes, score: float | None) -> None:
        queue = FairQueue(redis)
        queue.user("ann").set_organization("acme", now=NOW)
        push_many(queue, "ann", 1)
        push_many(queue, "bolt", 1)
        queue.user("ann").pause(until=NOW + 60, now=NOW)
        queue.organization("acme").pause(until=NOW + 60, now=NOW)
        is_known = entry in (b"ann", b"\xffacme")
        if is_known:
            redis.zrem(f"{P}throttled", entry)
        if score is not None or not is_known:
            redis.zadd(f"{P}throttled", {entry: 9e15})
        assert {violation.invariant for violation in queue.check_invariants()} == {"throttled"}
        assert all(repair.is_fixed for repair in queue.repair(now=NOW))
        assert queue.check_invariants() == []
        assert len(queue.pop_batch(9, "w", now=NOW + 60)) == 2


def test_a_pause_moves_to_other_shards_with_its_note_and_end(redis: Redis) -> None:
    queue, moved = (FairQueue(redis, config=CONFIG.model_copy(update={"shards": number})) for number in (1, 4))
    handles: list[Any] = [queue, queue.organization("acme"), *(queue.user(f"user-{number}") for number in range(9))]
    for handle in handles:
        handle.pause(note="moves", until=NOW + 60, now=NOW)
    queue.reshard(4, now=NOW + 1)
    expected = Pause("moves", NOW + 60)
    assert moved.get_stats(0).pause == expected
    assert {user.pause for user in moved.user_stats([f"user-{number}" for number in range(9)])} == {expected}
    assert moved.organization("acme").stats().pause == expected
    assert moved.check_invariants() == []
    moved.push_batch([task(f"user-{number}") for number in range(9)], now=NOW + 2)
    assert moved.pop("w", now=NOW + 59) is None
    leases = moved.pop_batch(9, "w", now=NOW + 60)
    assert len(leases) == 9
    moved.settle([Outcome.finish(lease) for lease in leases], now=NOW + 61)


def test_an_end_is_not_moved_by_a_clock_that_is_set_back(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.push(task("ann"))
    queue.user("ann").pause(until=datetime.now(timezone.utc) + timedelta(hours=1))
    until = stats_of(queue.user("ann")).pause.until
    redis.hset(f"{P}stats", mapping={"revision": "", "clock": int((until + 3600) * 1e6), "given": 0})
    queue.sweep()
    assert stats_of(queue.user("ann")).pause.until == until
    assert queue.check_invariants() == []
    assert queue.pop("w") is None
    assert queue.pop("w", now=until) is not None
