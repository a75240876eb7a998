from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.engine.model.options import QueueConfig
from tests.lab.proof.server_states import States
from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server of the proof's own: several of its databases are used as places to keep states."""
    with Server() as server:
        yield server


@pytest.fixture
def redis(own_server: Server) -> Iterator[Redis]:
    own_server.start()
    with own_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def states(redis: Redis) -> States:
    return States(redis)


@pytest.fixture(scope="session")
def config() -> QueueConfig:
    """Everything that takes time is short, slices are small, nothing is left to chance."""
    return QueueConfig(
        max_deliveries=2,
        retry_jitter=0,
        sweep_batch_size=5,
        result_ttl=3_000,
        failed_ttl=30_000,
        user_ttl=300,
        max_backlog=40,
        starvation={"VERY_LOW": 15, "LOW": 15, "NORMAL": 25},
        sla_at_risk_seconds=2,
    )
