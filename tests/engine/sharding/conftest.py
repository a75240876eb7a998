from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.sharding.sharded import CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis


@pytest.fixture
def queue(redis: Redis) -> Iterator[FairQueue]:
    made = FairQueue(redis, config=CONFIG)
    yield made
    assert made.check_invariants() == []
