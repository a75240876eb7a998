"""Declared schedules: those of the newest deployment are in force, whichever worker starts last."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.declarations import DeclaredSchedule, DeclaredVersion, version_name
from tests.engine.conftest import NOW, MakeQueue, task

P = "fq:{default:0}:"


class Code:
    """A version of the project, whose workers declare these schedules: intervals in seconds, by name."""

    def __init__(self, queue: FairQueue, version: str, **intervals: float) -> None:
        self.queue = queue
        self.declared = {
            name: DeclaredSchedule(task(f"user-{name}"), {"every": every}, f"{every}")
            for name, every in intervals.items()
        }
        self.version = version_name(version, f"{sorted(intervals.items())}"[:20].replace(" ", ""))

    def report(self, at: float, action: Any = "start", worker: str = "w") -> DeclaredVersion:
        return self.queue.schedules.report_version(self.version, worker, action=action, now=NOW + at)

    def run(self, at: float, action: Any = "start", worker: str = "w") -> bool:
        """Report the version, and declare its schedules if it counts. Returns whether it does."""
        counting = self.report(at, action, worker)
        if counting.version != self.version:
            return False
        return self.queue.schedules.declare(self.declared, counting, now=NOW + at)


def names(queue: FairQueue) -> list[str]:
    return [schedule.name for schedule in queue.schedules.list()]


@pytest.fixture(params=[1, 3])
def queue(request: pytest.FixtureRequest, make_queue: MakeQueue) -> FairQueue:
    return make_queue(shards=request.param)


def test_a_restarting_worker_of_an_old_version_changes_no_schedules(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60, b=60), Code(queue, "2", b=90, c=60)
    assert old.run(0)
    assert new.run(10)
    assert not old.run(12, worker="again")
    assert not old.run(15, "renew", worker="again")
    assert names(queue) == ["b", "c"]
    assert queue.schedules.get("b").every == 90
    assert new.run(20, worker="another")
    assert names(queue) == ["b", "c"]


def test_a_rollback_counts_after_the_last_newer_worker_has_left(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60), Code(queue, "2", b=60)
    assert old.run(0)
    assert new.run(10, worker="n1")
    assert new.run(10, worker="n2")
    new.report(20, "leave", "n1")
    assert not old.run(24, "renew")
    new.report(25, "leave", "n2")
    assert not old.run(26, "renew"), "a worker that restarts at once has not gone"
    assert old.run(29, "renew")
    assert names(queue) == ["a"]
    assert not new.run(35, worker="a straggler that restarts"), "the rollback is the newest deployment"
    assert names(queue) == ["a"]


def test_a_rollback_counts_when_the_newer_workers_have_crashed(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60), Code(queue, "2", b=60)
    old.run(0)
    new.run(1)
    assert [old.run(at, "renew") for at in range(5, 40, 5)] == [False] * 6 + [True]


def test_the_newest_version_with_workers_counts(queue: FairQueue) -> None:
    first, second, third = (Code(queue, str(number), **{f"s{number}": 60}) for number in (1, 2, 3))
    for number, code in enumerate((first, second, third)):
        assert code.run(number)
    for at in range(5, 60, 5):
        first.run(at, "renew")
        second.run(at, "renew")
    assert names(queue) == ["s2"]


def test_an_outage_of_the_server_is_no_rollback(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60), Code(queue, "2", b=60)
    old.run(0)
    new.run(1)
    assert not old.run(5, "renew")
    assert not old.run(1000, "renew"), "the other workers have not reported yet"
    assert new.run(1001, "renew")
    assert not old.run(1005, "renew")


def test_an_operator_can_adopt_a_version_s_schedules_at_once(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60), Code(queue, "2", b=60)
    old.run(0)
    new.run(10)
    assert old.run(11, "adopt", "adopt")
    assert [new.run(at, "renew") for at in range(15, 400, 5)] == [False] * 77
    assert not new.run(401, worker="restarted")
    assert names(queue) == ["a"]


def test_the_same_declarations_in_a_new_version_are_a_deployment(queue: FairQueue) -> None:
    first, second, third = Code(queue, "1", a=60), Code(queue, "2", b=60), Code(queue, "3", a=60)
    first.run(0)
    second.run(5)
    assert third.run(10)
    assert names(queue) == ["a"]


def test_a_slow_worker_of_an_older_version_changes_no_schedules(queue: FairQueue) -> None:
    old, new = Code(queue, "1", **{f"a{i}": 60 for i in range(6)}), Code(queue, "2", b=60)
    counted = old.report(0)
    assert new.run(1)
    assert not queue.schedules.declare(old.declared, counted, now=NOW + 2)
    assert names(queue) == ["b"]


def test_a_rollback_restores_changes_of_an_operator(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60, b=60, c=60), Code(queue, "2", b=90)
    old.run(0)
    assert len(queue.schedules.fire_due(now=NOW + 60)) == 3
    fired = queue.schedules.get("c").last
    queue.schedules.pause("a", note="moving", now=NOW + 61)
    queue.schedules.pause("b", now=NOW + 61)
    new.run(70)
    assert [schedule.enabled for schedule in queue.schedules.list()] == [True], (
        "another declaration is another schedule"
    )
    queue.schedules.pause("b", now=NOW + 71)
    assert old.run(75, "adopt")
    assert [(schedule.name, schedule.every, schedule.enabled) for schedule in queue.schedules.list()] == [
        ("a", 60, False),
        ("b", 60, False),
        ("c", 60, True),
    ]
    assert queue.schedules.get("a").pause_note == "moving"
    assert queue.schedules.get("c").last == fired is not None
    assert queue.schedules.get("c").next_at == NOW + 120
    assert new.run(76, "adopt")
    assert [(schedule.name, schedule.every, schedule.enabled) for schedule in queue.schedules.list()] == [
        ("b", 90, False)
    ]


def test_schedules_that_are_not_declared_remain(queue: FairQueue) -> None:
    queue.schedules.add("mine", task=task(), every=60, now=NOW)
    Code(queue, "1", a=60).run(0)
    Code(queue, "2").run(1)
    assert names(queue) == ["mine"]


def test_records_of_declared_schedules_are_bounded(queue: FairQueue, redis: Redis) -> None:
    for number in range(70):
        assert Code(queue, str(number), **{f"s{number % 30}": 60}).run(number * 60, worker=f"w{number}")
    assert redis.hlen(P + "schedules:versions") <= 51
    assert redis.zcard(P + "schedules:workers") <= 2
    last = Code(queue, "last")
    last.run(70 * 60)
    last.run(70 * 60 + 31 * 86_400, worker="restarted")
    assert not any(redis.exists(f"fq:{{default:{shard}}}:schedules:retired") for shard in range(3))
    Code(queue, "later").run(70 * 60 + 32 * 86_400)
    assert redis.hlen(P + "schedules:versions") == 3  # the last two versions, and the one that counts


@pytest.mark.parametrize("record", [b"", b"x", b"[1]", b'[1,"{",null]', b'["x","{}",null]'])
def test_a_damaged_stored_schedule_is_ignored(make_queue: MakeQueue, redis: Redis, record: bytes) -> None:
    queue = make_queue()
    redis.hset(P + "schedules:retired", "a", record)
    assert Code(queue, "1", a=60).run(0)
    assert queue.schedules.get("a").enabled


def test_the_queue_lists_the_versions_that_workers_run(queue: FairQueue) -> None:
    old, new = Code(queue, "1", a=60), Code(queue, "2", b=60)
    old.run(0)
    new.run(1, worker="n1")
    new.run(1, worker="n2")
    found = queue.schedules.running_versions(now=NOW + 2)
    assert [(declaration.version, declaration.workers, declaration.is_in_force) for declaration in found] == [
        (old.version, 1, False),
        (new.version, 2, True),
    ]
    assert queue.schedules.running_versions(now=NOW + 60) == []
