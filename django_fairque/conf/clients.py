"""Clients of redis-py from a `RedisConfig`, with and without await: the same options, from the same place.

Every client sends a command once. Repeating is the queue's business, which gives each call a nonce so that doing it
twice has one effect; redis-py would repeat a push ten times and not say so.
"""

from __future__ import annotations

import socket
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django_fairque.engine.transport.cluster import is_cluster

from .version import version

if TYPE_CHECKING:
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

    from .redis import RedisConfig

SYNC = "redis"
ASYNC = "redis.asyncio"

# A dead peer is noticed after 30 + 3 × 5 seconds even while nothing is sent. The names differ between systems.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def create_client(config: RedisConfig, *, decode_responses: bool = False) -> Redis | RedisCluster:
    """A new client; see `RedisConfig.create_redis_client`."""
    client: Redis | RedisCluster = _create(config, SYNC, decode_responses=decode_responses)
    return client


def create_async_client(config: RedisConfig, *, decode_responses: bool = False) -> AsyncRedis | AsyncRedisCluster:
    """A new client for coroutines; see `RedisConfig.create_async_redis_client`."""
    client: AsyncRedis | AsyncRedisCluster = _create(config, ASYNC, decode_responses=decode_responses)
    return client


def close_client(client: Any) -> None:
    """Close a client and, if it has some, the clients that ask its sentinels, which redis-py leaves open."""
    client.close()
    for sentinel in _sentinels(client):
        sentinel.close()


async def aclose_client(client: Any) -> None:
    """As `close_client`, for coroutines."""
    await client.aclose()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: Any) -> list[Any]:
    pool = None if is_cluster(client) else client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return manager.sentinels if manager else []


def _create(config: RedisConfig, package: str, *, decode_responses: bool) -> Any:
    if config.cache:
        from .sources import resolve_cache

        config = resolve_cache(config)
    common = {**_common(config), "decode_responses": decode_responses}
    if config.cluster:
        return _cluster(config, package, common)
    if config.sentinel:
        return _primary_of_sentinels(config, package, common)
    pool = import_module(f"{package}.connection").BlockingConnectionPool
    options = {**common, "db": config.db, "max_connections": config.max_connections, **_retry(package)}
    # Whoever finds every connection busy waits, for as long as for an answer, instead of failing at once.
    options |= {"timeout": config.socket_timeout, **_place(config, package)}
    return import_module(package).Redis.from_pool(pool(**options))


def _common(config: RedisConfig) -> dict[str, Any]:
    return {
        "protocol": 2,
        "username": config.username,
        "password": config.password.get_secret_value() if config.password else None,
        "socket_timeout": config.socket_timeout,
        "socket_connect_timeout": config.socket_connect_timeout,
        "health_check_interval": config.health_check_interval,
        **_name(),
    }


@cache
def _name() -> dict[str, Any]:
    """What CLIENT LIST says of our connections: the package and, with it, this one.

    Newer versions of redis-py (8.1) take it from their caller, or look their own version up for each connection: 3.5 of the
    4 ms that making one takes. Older ones (5.1) look once, and can't be told more.
    """
    try:
        driver_info = import_module("redis.driver_info").DriverInfo()
    except ImportError:
        return {}
    return {"driver_info": driver_info.add_upstream_driver("django-fairque", version())}


def _retry(package: str) -> dict[str, Any]:
    no_backoff = import_module("redis.backoff").NoBackoff()
    return {"retry": import_module(f"{package}.retry").Retry(no_backoff, 0)}


def _place(config: RedisConfig, package: str) -> dict[str, Any]:
    """The class of the connections and where they lead."""
    connection = import_module(f"{package}.connection")
    if config.is_embedded:
        from django_fairque.embedded import connection_pool_kwargs

        from .sources import embedded_directory

        return connection_pool_kwargs(
            embedded_directory(str(config.url)),
            asynchronous=package == ASYNC,
            answer_timeout=config.socket_connect_timeout,
        )
    if config.socket_path:
        return {"connection_class": connection.UnixDomainSocketConnection, "path": config.socket_path}
    kind = connection.SSLConnection if config.ssl else connection.Connection
    return {"connection_class": kind, **_tcp(config), **_tls(config)}


def _tcp(config: RedisConfig) -> dict[str, Any]:
    host, port = config.endpoint or (config.host, config.port)
    return {"host": host, "port": port, **_keepalive()}


def _keepalive() -> dict[str, Any]:
    options = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def _tls(config: RedisConfig) -> dict[str, Any]:
    if not config.ssl:
        return {}
    return {
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_certfile": config.ssl_certfile,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_cert_reqs": config.ssl_cert_reqs,
        "ssl_check_hostname": config.ssl_check_hostname and config.ssl_cert_reqs != "none",
    }


def _primary_of_sentinels(config: RedisConfig, package: str, common: dict[str, Any]) -> Any:
    sentinel = config.sentinel
    assert sentinel is not None  # noqa: S101 - the caller has looked
    module = import_module(f"{package}.sentinel")
    tls = {"ssl": config.ssl, **_tls(config)}
    alike = {**_retry(package), **_keepalive(), **tls}
    ask = {
        "protocol": 2,
        "username": sentinel.username,
        "password": sentinel.password.get_secret_value() if sentinel.password else None,
        "socket_timeout": config.socket_connect_timeout,  # a sentinel answers at once, or the next one is asked
        "socket_connect_timeout": config.socket_connect_timeout,
    }
    manager = module.Sentinel(sentinel.nodes, sentinel_kwargs={**ask, **alike})
    # Its pool raises when all connections are busy, where the others wait: the queue then tries again.
    options = {**common, "db": config.db, "max_connections": config.max_connections, **alike}
    return manager.master_for(sentinel.service, **options)


def _cluster(config: RedisConfig, package: str, common: dict[str, Any]) -> Any:
    options = {**common, **_tcp(config), "ssl": config.ssl, **_tls(config)}
    options |= {"max_connections": config.max_connections, **_once(package)}
    if package == ASYNC:
        return import_module("redis.asyncio.cluster").RedisCluster(**options)
    from .cluster import LazyRedisCluster

    return LazyRedisCluster(**options)


def _once(package: str) -> dict[str, Any]:
    """What keeps a cluster's client from repeating; redirections to another node are still followed.

    Before redis-py 6 a pipeline for coroutines that may not be repeated is not even sent: there it is once. Only what
    changes nothing goes that way.
    """
    repeats = 1 if package == ASYNC else 0
    older = {"cluster_error_retry_attempts": repeats} if import_module("redis").VERSION < (6,) else {}
    return {**_retry(package), **older}
