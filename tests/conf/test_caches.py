"""A server named by a cache's alias, in every form the two backends have."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from redis import Redis

from django_fairque.conf import RedisConfig
from django_fairque.conf.redis import resolve_cache
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.servers import Server

    from .conftest import Configure

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"

both = pytest.mark.parametrize("backend", [DJANGO, DJANGO_REDIS])


@pytest.fixture
def resolve(settings: Settings) -> Any:
    def resolve(backend: str, location: Any, options: dict[str, Any] | None = None, **own: Any) -> RedisConfig:
        cache = {"BACKEND": backend, "LOCATION": location, **({} if options is None else {"OPTIONS": options})}
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, "queues": cache}
        return resolve_cache(RedisConfig(cache="queues", **own))

    return resolve


def password(config: RedisConfig) -> str | None:
    return config.password.get_secret_value() if config.password else None


@both
class TestCopiedOptions:
    @pytest.mark.parametrize(
        "location",
        ["redis://bob:x%40y@h:7/3", ["redis://bob:x%40y@h:7/3"], "redis://bob:x%40y@h:7/3,redis://replica:7/3"],
    )
    def test_the_first_location_of_a_cache_is_used(self, resolve: Any, backend: str, location: Any) -> None:
        config = resolve(backend, location)
        assert (config.endpoint, config.db, config.username, password(config)) == (("h", 7), 3, "bob", "x@y")

    def test_a_cache_location_can_use_tls_or_a_socket(self, resolve: Any, backend: str) -> None:
        assert resolve(backend, "rediss://h").ssl is True
        assert resolve(backend, "unix:///s.sock?db=2").database == "/s.sock number 2"

    def test_options_that_are_meant_for_a_cache_are_not_taken_over(self, resolve: Any, backend: str) -> None:
        config = resolve(backend, "redis://h/1?socket_timeout=0.1&max_connections=2&timeout=1&protocol=3")
        assert (config.socket_timeout, config.max_connections) == (15, 100)

    def test_options_in_the_section_redis_win_over_those_of_the_cache(self, resolve: Any, backend: str) -> None:
        config = resolve(backend, "redis://:x@h/1", db=5, password="y", socket_timeout=20)
        assert (config.db, password(config), config.socket_timeout, config.endpoint) == (5, "y", 20, ("h", 6379))


def test_options_of_django_s_cache_backend_are_used(resolve: Any) -> None:
    options = {
        "db": "4",
        "username": "u",
        "password": "p",
        "ssl_ca_certs": "/ca",
        "ssl_cert_reqs": "none",
        "pool_class": "redis.BlockingConnectionPool",
        "parser_class": "redis.connection.DefaultParser",
        "socket_timeout": 0.1,
        "retry_on_timeout": True,
    }
    config = resolve(DJANGO, "rediss://h", options)
    assert (config.db, config.username, password(config)) == (4, "u", "p")
    assert (config.ssl_ca_certs, config.ssl_cert_reqs, config.socket_timeout) == ("/ca", "none", 15)


def test_options_of_django_redis_are_used(resolve: Any) -> None:
    options = {
        "CLIENT_CLASS": "django_redis.client.DefaultClient",
        "USERNAME": "u",
        "PASSWORD": "p",
        "SOCKET_TIMEOUT": 0.1,
        "CONNECTION_POOL_KWARGS": {"ssl_ca_certs": "/ca", "max_connections": 3},
    }
    config = resolve(DJANGO_REDIS, "rediss://h/2", options)
    assert (config.db, config.username, password(config), config.ssl_ca_certs) == (2, "u", "p", "/ca")
    assert (config.socket_timeout, config.max_connections) == (15, 100)


@both
def test_the_url_wins_over_the_options_as_in_redis_py(resolve: Any, backend: str) -> None:
    own = {"username": "u", "password": "p", "db": 4}
    options = own if backend == DJANGO else {"CONNECTION_POOL_KWARGS": own}
    config = resolve(backend, "redis://:x@h/1", options)
    assert (config.db, config.username, password(config)) == (1, "u", "x")
    with Redis.from_url("redis://:x@h/1", **own) as client:
        kwargs = client.connection_pool.connection_kwargs
    assert (kwargs["db"], kwargs["username"], kwargs["password"]) == (1, "u", "x")


@both
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "none"),
        ("none", "none"),
        (ssl.CERT_NONE, "none"),
        (ssl.CERT_REQUIRED, "required"),
        ("optional", "optional"),
    ],
)
def test_the_verification_of_certificates_is_copied_from_the_cache(
    resolve: Any, backend: str, given: Any, expected: str
) -> None:
    own = {"ssl_cert_reqs": given}
    options = own if backend == DJANGO else {"CONNECTION_POOL_KWARGS": own}
    assert resolve(backend, "rediss://h", options).ssl_cert_reqs == expected


@pytest.mark.parametrize(("backend", "word"), [(DJANGO, "a"), (DJANGO_REDIS, "a;b")])
def test_a_location_is_split_as_the_cache_backend_splits_locations(resolve: Any, backend: str, word: str) -> None:
    config = resolve(backend, f"redis://:{word}@h,redis://i")
    assert (password(config), config.endpoint) == (word, ("h", 6379))


def test_sentinels_of_django_redis_are_used(resolve: Any) -> None:
    options = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [("a", 26379), ("b", 26380)],
        "SENTINEL_KWARGS": {"password": "sp", "socket_timeout": 0.1},
        "PASSWORD": "p",
    }
    config = resolve(DJANGO_REDIS, "redis://main/4", options)
    assert config.sentinel is not None
    assert config.sentinel.nodes == [("a", 26379), ("b", 26380)]
    assert (config.sentinel.service, config.db, password(config), config.url) == ("main", 4, "p", None)
    assert config.sentinel.password is not None
    assert config.sentinel.password.get_secret_value() == "sp"


def test_sentinels_and_the_primary_can_both_use_tls(resolve: Any) -> None:
    tls = {"ssl": True, "ssl_ca_certs": "/ca"}
    options = {"SENTINELS": [("a", 1)], "SENTINEL_KWARGS": tls, "CONNECTION_POOL_KWARGS": tls}
    config = resolve(DJANGO_REDIS, "redis://main/0?is_master=1", options)
    assert (config.ssl, config.ssl_ca_certs) == (True, "/ca")


@both
def test_a_client_uses_the_server_and_database_of_the_cache(
    backend: str, settings: Settings, configure: Configure, server: Server, redis: Redis
) -> None:
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": f"unix://{server.socket}?db=2"}}
    with configure({"REDIS": {"CACHE": "default"}}).create_redis_client() as client:
        client.set("a", "b")
        caches["default"].set("c", "d")
        assert redis.info("keyspace")["db2"]["keys"] == 2
        caches["default"].close()
    # The pool is our own: nothing done to the cache's touches it.
    assert client.connection_pool is not getattr(caches["default"], "connection_pool", None)


class TestMistakes:
    def error(self, resolve: Any, *arguments: Any) -> str:
        with pytest.raises(ConfigurationError) as caught:
            resolve(*arguments)
        assert "hunter" not in str(caught.value)
        return str(caught.value)

    def test_an_unknown_cache_alias_is_refused(self, settings: Settings, configure: Configure) -> None:
        settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": "redis://h"}, "queues": {}}
        assert configure.error({"REDIS": {"CACHE": "queue"}}) == (
            'settings.FAIRQUE["REDIS"]["CACHE"]: expected one of the caches default, queues; got \'queue\'; '
            "did you mean queues?"
        )

    @pytest.mark.parametrize(
        ("backend", "expected"),
        [
            ("django.core.cache.backends.locmem.LocMemCache", "expected a cache with the backend django_redis.cache"),
            ("nowhere.Cache", "has the backend 'nowhere.Cache', which can't be imported: No module named 'nowhere'"),
            ("", "has the backend '', which can't be imported"),
        ],
    )
    def test_a_cache_with_an_unsupported_backend_is_refused(self, resolve: Any, backend: str, expected: str) -> None:
        assert expected in self.error(resolve, backend, "redis://h")

    @both
    @pytest.mark.parametrize("location", ["", None, []])
    def test_a_cache_without_a_location_is_refused(self, resolve: Any, backend: str, location: Any) -> None:
        assert self.error(resolve, backend, location).endswith("cache 'queues' has no LOCATION")

    @both
    def test_a_location_of_a_cache_that_is_no_valid_url_is_refused(self, resolve: Any, backend: str) -> None:
        message = self.error(resolve, backend, "redis://:hunter2@h/first")
        assert "cache 'queues' can't be used as it is: " in message
        assert "expected a database number after the host" in message

    @pytest.mark.parametrize(
        ("backend", "options", "name"),
        [
            (DJANGO, {"ssl_ciphers": "x"}, "ssl_ciphers"),
            (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"connection_class": object}}, "connection_class"),
            (DJANGO_REDIS, {"CONNECTION_FACTORY": "shop.Factory"}, "CONNECTION_FACTORY"),
            (DJANGO_REDIS, {"CLIENT_CLASS": "django_redis.client.ShardClient"}, "CLIENT_CLASS"),
        ],
    )
    def test_an_option_that_can_not_be_taken_over_is_refused(
        self, resolve: Any, backend: str, options: dict[str, Any], name: str
    ) -> None:
        expected = f"cache 'queues' has the option {name}, which can't be taken over; configure REDIS itself"
        assert expected in self.error(resolve, backend, "redis://h", options)

    @both
    def test_an_option_in_the_url_that_can_not_be_taken_over_is_refused(self, resolve: Any, backend: str) -> None:
        assert "has the option ssl_ciphers, " in self.error(resolve, backend, "rediss://h?ssl_ciphers=HIGH")

    def test_an_unknown_connection_factory_for_all_caches_is_refused_for_django_redis(
        self, resolve: Any, settings: Settings
    ) -> None:
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.ConnectionFactory"
        assert resolve(DJANGO_REDIS, "redis://h").endpoint == ("h", 6379)
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "shop.Factory"
        assert resolve(DJANGO, "redis://h").endpoint == ("h", 6379)
        assert "has the option CONNECTION_FACTORY, " in self.error(resolve, DJANGO_REDIS, "redis://h")

    def test_a_cluster_of_a_cache_must_be_declared_as_a_cluster(self, resolve: Any) -> None:
        options = {"CONNECTION_FACTORY": "shop.ClusterFactory", "REDIS_CLIENT_CLASS": "redis.cluster.RedisCluster"}
        assert "for a cluster set CLUSTER to True together with CACHE" in self.error(
            resolve, DJANGO_REDIS, "redis://h", options
        )
        config = resolve(DJANGO_REDIS, ["redis://:p@h:7000", "redis://:p@h:7001"], options, cluster=True)
        assert (config.cluster, config.endpoint, password(config)) == (True, ("h", 7000), "p")
        del options["CONNECTION_FACTORY"]
        assert "has the option REDIS_CLIENT_CLASS, " in self.error(resolve, DJANGO_REDIS, "redis://h", options)

    @pytest.mark.parametrize(("pool", "sentinels"), [({"ssl": True}, {}), ({}, {"ssl": True})])
    def test_tls_for_only_the_sentinels_or_only_the_primary_is_refused(
        self, resolve: Any, pool: Any, sentinels: Any
    ) -> None:
        options = {"SENTINELS": [("a", 1)], "SENTINEL_KWARGS": sentinels, "CONNECTION_POOL_KWARGS": pool}
        assert "expected both or neither" in self.error(resolve, DJANGO_REDIS, "redis://main/0", options)
