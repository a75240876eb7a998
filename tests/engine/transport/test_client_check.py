"""A queue refuses objects that are no clients of its kind."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from django_fairque.conf import FairQueueConfig, RedisConfig
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue

NO_CLIENTS = [
    FairQueueConfig(),
    RedisConfig(),
    QueueConfig(),
    "redis://127.0.0.1",
    None,
    redis.ConnectionPool(),
    redis.Redis,
]


@pytest.mark.parametrize("given", NO_CLIENTS, ids=lambda given: type(given).__name__)
def test_an_object_that_is_no_client_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"redis client, as create_redis_client\(\).*got [\w.]*{type(given).__name__};"
    ):
        FairQueue(given)
    with pytest.raises(
        ConfigurationError, match=r"as create_async_redis_client\(\) of a FairQueueConfig.*get_queue\(\)"
    ):
        AsyncFairQueue(given)


def test_an_error_about_a_client_does_not_quote_its_address() -> None:
    with pytest.raises(ConfigurationError, match="got str;") as raised:
        FairQueue("redis://:secret@127.0.0.1")  # type: ignore[arg-type]
    assert "secret" not in str(raised.value)


def test_a_sync_client_for_an_async_queue_is_refused_and_the_reverse() -> None:
    with redis.Redis() as client, pytest.raises(ConfigurationError, match=r"client of redis\.asyncio, .* got redis\."):
        AsyncFairQueue(client)
    with pytest.raises(
        ConfigurationError, match=r"not awaited, as create_redis_client\(\) makes one, got redis\.asyncio"
    ):
        FairQueue(redis.asyncio.Redis())


@pytest.mark.parametrize("given", [{}, {"cluster": True}], ids=["a server", "a cluster"])
def test_clients_that_the_configuration_makes_are_accepted(given: dict[str, Any]) -> None:
    config = FairQueueConfig(redis=RedisConfig(url="redis://127.0.0.1:1/0", **given))
    FairQueue(config.create_redis_client())
    AsyncFairQueue(config.create_async_redis_client())
