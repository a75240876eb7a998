"""`create_synchronous_client`: a client for threads that reaches the same server as one for coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import close_client, create_synchronous_client
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from tests.servers import Server

NOT_COMPARED = ("retry", "decode_responses", "himport_registry")
"""Options that are another object in each client, or False by default."""
TLS = {"ssl": True, "ssl_ca_certs": "/ca", "ssl_certfile": "/cert", "ssl_keyfile": "/key", "ssl_check_hostname": False}


def described(client: Any) -> Any:
    """What decides where a client connects, and how."""
    pool = client.connection_pool
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in NOT_COMPARED}
    retries = pool.connection_kwargs["retry"]._retries
    return type(pool), pool.connection_class, getattr(pool, "timeout", None), options, pool.max_connections, retries


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://ann:secret@there:7000/3", "max_connections": 7, "socket_timeout": 4},
        {"url": "unix:///run/redis.sock", "db": 2},
        {"url": "rediss://there", **TLS},
    ],
)
def test_it_has_the_settings_of_the_configured_one(options: dict[str, Any]) -> None:
    config = RedisConfig(**options)
    assert described(create_synchronous_client(config.create_async_redis_client())) == described(
        config.create_redis_client()
    )


def test_so_it_does_with_the_embedded_server(tmp_path: Path) -> None:
    config = RedisConfig(url=f"embedded://{tmp_path}/queue")
    assert described(create_synchronous_client(config.create_async_redis_client())) == described(
        config.create_redis_client()
    )


def test_a_client_of_the_program(server: Server, redis: Redis) -> None:
    client: Any = create_synchronous_client(server.async_client(db=3, decode_responses=True))
    client.set("a", "b")
    assert client.get("a") == b"b"
    assert redis.info("keyspace").keys() == {"db3"}
    close_client(client)


def test_a_client_of_the_program_with_classes_of_its_own() -> None:
    class Pool(redis.asyncio.ConnectionPool):
        """As others are made."""

    class Connection(redis.asyncio.Connection):
        """As others are made."""

    client: Any = redis.asyncio.Redis(connection_pool=Pool(connection_class=Connection, host="there"))
    pool = create_synchronous_client(client).connection_pool  # type: ignore[union-attr]
    assert (type(pool), pool.connection_class) == (redis.ConnectionPool, redis.Connection)
    assert pool.connection_kwargs["host"] == "there"
    pool = Pool()
    pool.connection_class = object  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"expected connections of redis-py, got builtins\.object"):
        create_synchronous_client(redis.asyncio.Redis(connection_pool=pool))
