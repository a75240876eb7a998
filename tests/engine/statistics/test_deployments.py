"""Deployments: when workers first reported a version of the project's code, and when one came back."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.deployments import Deployment
from tests.counting import commands
from tests.engine.conftest import NOW

P = "fq:{default:0}:"


def beat(queue: FairQueue, version: str, at: float = 0.0, worker: str = "", **options: Any) -> None:
    """Send the heartbeat of a worker, by default one with this version."""
    queue.heartbeat(worker or f"w-{version}", {"code_version": version}, now=NOW + at, **options)


def deployed(queue: FairQueue) -> list[tuple[str, float]]:
    return [(deployment.code_version, deployment.at - NOW) for deployment in queue.get_stats().deployments]


def test_a_version_is_deployed_when_a_worker_first_reports_it(queue: FairQueue) -> None:
    queue.heartbeat("older", {"version": "1"}, now=NOW)
    beat(queue, "", worker="without")
    assert queue.get_stats().deployments == []
    beat(queue, "abc1234", 5)
    beat(queue, "abc1234", 6, worker="another")
    assert queue.get_stats().deployments == [Deployment("abc1234", NOW + 5)]
    assert {record.worker: record.info.get("code_version") for record in queue.workers()} == {
        "older": None,
        "without": "",
        "w-abc1234": "abc1234",
        "another": "abc1234",
    }


def test_a_rolling_deployment_is_recorded_once(queue: FairQueue) -> None:
    beat(queue, "old")
    for at in range(10, 300, 10):
        beat(queue, "new", at)
        beat(queue, "old", at + 5)
    beat(queue, "old", 300, worker="restarted")
    assert deployed(queue) == [("old", 0), ("new", 10)]


def test_a_version_that_returns_is_deployed_again(queue: FairQueue) -> None:
    for version, at in (("old", 0), ("new", 10), ("new", 50), ("old", 59)):
        beat(queue, version, at)
    assert deployed(queue) == [("old", 0), ("new", 10)]
    beat(queue, "new", 100)
    beat(queue, "old", 130, worker="w2")
    assert deployed(queue) == [("old", 0), ("new", 10), ("old", 130)]


def test_a_pause_of_all_workers_is_no_deployment(queue: FairQueue) -> None:
    beat(queue, "only")
    beat(queue, "only", 86_400)
    assert deployed(queue) == [("only", 0)]


def test_workers_whose_heartbeats_are_rare_do_not_alternate(queue: FairQueue) -> None:
    for at in range(0, 3000, 200):
        beat(queue, "old", at, lease=600)
        beat(queue, "new", at + 1, lease=600)
    assert deployed(queue) == [("old", 0), ("new", 1)]


def test_a_worker_that_reports_a_new_version_each_time_is_recorded_once(queue: FairQueue) -> None:
    for number in range(200):
        beat(queue, f"v{number}", number, worker="w")
    assert deployed(queue) == [("v0", 0)]
    beat(queue, "v199", 200, worker="w")
    assert deployed(queue) == [("v0", 0), ("v199", 200)]


def test_the_records_of_deployments_are_bounded(queue: FairQueue, redis: Redis) -> None:
    for number in range(120):
        beat(queue, f"{number} " + "é\n" * 5000, number, worker=f"w{number}")
    found = queue.get_stats().deployments
    assert [deployment.at - NOW for deployment in found] == list(range(70, 120))
    assert all(len(deployment.code_version) <= 100 for deployment in found)
    assert (redis.llen(P + "deployments"), redis.zcard(P + "code_versions")) == (50, 50)
    assert all(len(record.info["code_version"]) <= 100 for record in queue.workers())


@pytest.mark.parametrize(
    "entry", [b"", b"x", b"12", b"-1 a", b"1e9 a", b"9" * 30 + b" a", b"\xff \xff", "²³ a".encode()]
)
def test_a_damaged_deployment_record_is_ignored(queue: FairQueue, redis: Redis, entry: bytes) -> None:
    redis.rpush(P + "deployments", entry)
    beat(queue, "abc")
    assert deployed(queue) == [("abc", 0)]


@pytest.mark.parametrize("name", ["deployments", "code_versions"])
def test_a_key_of_another_type_hides_only_deployments(queue: FairQueue, redis: Redis, name: str) -> None:
    redis.set(P + name, "damaged")
    beat(queue, "abc")
    beat(queue, "abc", 100)
    assert [record.info["code_version"] for record in queue.workers()] == ["abc"]
    assert P + name in {violation.key for violation in queue.check_invariants()}
    redis.delete(P + name)


def test_a_heartbeat_costs_at_most_two_commands_more(queue: FairQueue, redis: Redis) -> None:
    queue.heartbeat("w", {}, now=NOW)
    without = commands(redis, lambda: queue.heartbeat("w", {}, now=NOW + 1))
    beat(queue, "abc", 2, worker="w")
    costs = [commands(redis, lambda at=at: beat(queue, "abc", at, worker="w")) for at in range(10, 100, 10)]  # type: ignore[misc]
    assert max(costs) <= without + 2


def test_all_shards_of_a_queue_have_the_same_deployments(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig(shards=3))
    beat(queue, "abc")
    assert deployed(queue) == [("abc", 0)]
    assert all(deployed(shard) == [("abc", 0)] for shard in queue.shards)
