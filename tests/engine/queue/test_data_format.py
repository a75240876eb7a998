"""The format of a queue's data: versions that would misread each other refuse to work."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.data_format import FORMAT, FORMAT_VERSION
from django_fairque.engine.model.errors import DataFormatError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import pop, task

STATS = "fq:{default:0}:stats"


def test_the_first_push_writes_the_format_and_its_version(redis: Redis) -> None:
    FairQueue(redis).push(task("u"))
    assert redis.hmget(STATS, "format", "format_version") == [b"%d" % FORMAT, FORMAT_VERSION.encode()]


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        (FORMAT + 1, "Install a version that uses it here"),
        *[(older, r"Install the version that wrote them .* \(those with \{default: in") for older in range(1, FORMAT)],
    ],
)
def test_data_of_another_version_is_refused_by_new_and_old_processes(redis: Redis, other: int, advice: str) -> None:
    working, watching = FairQueue(redis), FairQueue(redis)
    working.push(task("u"))
    watching.get_stats()
    pop(working, None)
    working.push(task("u"))
    redis.hset(STATS, mapping={"format": other, "format_version": "9.8.7", "revision": ""})
    stored = sorted(redis.keys())
    text = rf"data of queue 'default' have format {other} \(from django_fairque 9\.8\.7 on\).*uses format {FORMAT}.*{advice}"
    for queue in (working, FairQueue(redis)):
        with pytest.raises(DataFormatError, match=text):
            queue.push(task("u"))
        with pytest.raises(DataFormatError, match=text):
            queue.pop("w")
    with pytest.raises(DataFormatError, match=text):
        FairQueue(redis).get_stats()
    assert sorted(redis.keys()) == stored
    redis.hset(STATS, mapping={"format": FORMAT, "revision": ""})
    assert working.pop("w") is not None


def test_a_shard_of_another_version_is_reported(redis: Redis) -> None:
    queue = FairQueue(redis, "q", QueueConfig(shards=3))
    queue.push_batch([task(f"u{number}") for number in range(20)])
    redis.hset("fq:{q:2}:stats", mapping={"format": FORMAT + 1, "revision": ""})
    with pytest.raises(DataFormatError, match=f"queue 'q' have format {FORMAT + 1}"):
        FairQueue(redis, "q", QueueConfig(shards=3)).push(task("u"))
