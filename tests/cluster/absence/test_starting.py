"""A process that begins while the first shard's node is away."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.cluster.six_nodes import Six
from tests.engine.conftest import task
from tests.worker.conftest import eventually

from .away import Away, in_time


@pytest.fixture
def away(six: Six) -> Away:
    return Away(six, 0)


@pytest.mark.slow
def test_living_shards_know_the_number_of_shards(open_queue: Any, queue: FairQueue, away: Away) -> None:
    away.kill()
    late = open_queue()
    with in_time():
        assert late.push(task(away.others[0])).status == "accepted"
    for part in open_queue().shards:
        if part._shards.home.keys.shard not in away.shards:
            with in_time():
                part.pop("w")
    with pytest.raises(ConfigurationError, match="lies on 12 shards and is configured to lie on 24"):
        open_queue(24).push(task(away.others[0]))


@pytest.mark.slow
def test_the_number_of_shards_is_read_from_a_first_shard_that_is_back(
    open_queue: Any, queue: FairQueue, away: Away
) -> None:
    """A queue of an earlier version has the number on its first shard only."""
    for shard in range(1, SHARDS):
        queue.client.execute_command("DEL", f"fq:{{default:{shard}}}:shards")
    away.kill()
    late = open_queue(24)
    late.get_stats()
    assert not late._is_checked
    away.start()
    late._check_at = 0.0
    with pytest.raises(ConfigurationError, match="lies on 12 shards"):
        eventually(lambda: bool(late.get_stats().missing_shards) and False, 20)


@pytest.mark.slow
def test_copies_of_the_number_of_shards_are_restored(open_queue: Any, queue: FairQueue) -> None:
    for shard in range(1, SHARDS):
        queue.client.execute_command("DEL", f"fq:{{default:{shard}}}:shards")
    open_queue().get_stats()
    held = [queue.client.execute_command("GET", f"fq:{{default:{shard}}}:shards") for shard in range(SHARDS)]
    assert {int(count) for count in held} == {SHARDS}
