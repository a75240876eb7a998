"""Several reads in the round trips of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Operation
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.statistics.health import health
from django_fairque.engine.statistics.queue_stats import activity, stats
from tests.engine.conftest import task
from tests.lab.benchmarks.admin import cost

Read = Callable[[Shards], Operation[Any]]


def test_reads_of_several_queues_together_have_the_results_of_single_reads(redis: Redis) -> None:
    queues = [FairQueue(redis, name, QueueConfig(shards=shards)) for name, shards in (("a", 1), ("b", 4), ("c", 1))]
    for size, queue in enumerate(queues):
        queue.push_batch([task(f"u{number}") for number in range(10 * size)])
    kinds: list[Read] = [health, lambda shards: stats(shards, 0)]
    found = read_in_lockstep([(queue, read) for queue in queues for read in kinds])
    assert [result.reasons for result in found[::2]] == [queue.health().reasons for queue in queues]
    assert [result.states["queued"] for result in found[1::2]] == [0, 10, 20]


def test_reads_of_several_queues_together_take_the_round_trips_of_the_longest_read(redis: Redis) -> None:
    FairQueue(redis, "a").push(task("u"))
    queues = [FairQueue(redis, name) for name in "abcdefgh"]
    alone = FairQueue(redis, "a")
    _, least = cost(redis, alone.get_stats)
    kinds: list[Read] = [health, stats, lambda shards: activity(shards, 60, 1)]
    _, trips = cost(redis, lambda: read_in_lockstep([(queue, read) for queue in queues for read in kinds]))
    assert trips <= least


def test_a_queue_on_another_number_of_shards_is_refused(redis: Redis) -> None:
    FairQueue(redis, "b", QueueConfig(shards=4)).push(task("u"))
    queues = [FairQueue(redis, "a"), FairQueue(redis, "b")]
    with pytest.raises(ConfigurationError, match="lies on 4 shards"):
        read_in_lockstep([(queue, health) for queue in queues])
    (found,) = read_in_lockstep([(queues[0], health)])
    assert found.status == queues[0].health().status
