from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.sharding.sharded import CONFIG


@pytest.fixture
def queue(redis: Redis) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=CONFIG)
    yield made
    assert made.check_invariants() == []
