"""Clients made from a configuration: to whom they connect, and that they send a command once."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr
from redis import BlockingConnectionPool, Redis, SSLConnection
from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool as AsyncBlockingConnectionPool
from redis.asyncio import SSLConnection as AsyncSSLConnection
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from django_fairque.conf import FairQueueConfig, RedisConfig
from django_fairque.embedded import AsyncEmbeddedConnection, EmbeddedConnection, EmbeddedServer
from tests.topologies import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings

    from tests.servers import Server

    from .conftest import Configure


def pool(**options: Any) -> Any:
    with RedisConfig(**options).create_redis_client() as client:
        return getattr(client, "connection_pool")  # noqa: B009 - a cluster's client has none


def async_pool(**options: Any) -> Any:
    return RedisConfig(**options).create_async_redis_client().connection_pool  # type: ignore[union-attr]


class TestOnAServer:
    @pytest.fixture
    def config(self, server: Server, redis: Redis) -> FairQueueConfig:
        return FairQueueConfig.model_validate({"redis": {"url": server.url, "db": 3}})

    def test_a_client_connects_to_the_configured_database(self, config: FairQueueConfig, redis: Redis) -> None:
        with config.create_redis_client() as client:
            client.set("a", "b")
            assert client.get("a") == b"b"
        assert redis.info("keyspace").keys() == {"db3"}

    async def test_an_asynchronous_client_connects_to_the_configured_database(
        self, config: FairQueueConfig, redis: Redis
    ) -> None:
        client = config.create_async_redis_client()
        await client.set("a", "b")
        assert await client.get("a") == b"b"
        await client.aclose()
        assert redis.info("keyspace").keys() == {"db3"}

    def test_a_client_decodes_replies_only_on_request(self, server: Server, redis: Redis) -> None:
        with RedisConfig(url=server.url).create_redis_client(decode_responses=True) as client:
            client.set("a", "b")
            assert client.get("a") == "b"

    def test_a_client_connects_over_tcp_with_credentials(self, make_server: Any) -> None:
        port = free_port()
        with make_server("--port", str(port), "--bind", "127.0.0.1").client() as admin:
            admin.config_set("requirepass", "p/@")
        with RedisConfig(url=f"redis://:p%2F%40@127.0.0.1:{port}/1").create_redis_client() as client:
            assert client.ping()
        with (
            RedisConfig(port=port, password=SecretStr("wrong")).create_redis_client() as client,
            pytest.raises(redis_errors.AuthenticationError),
        ):
            client.ping()


class DroppingServer:
    """Takes connections, reads what comes, and hangs up without an answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if not connection.recv(65536):
                    return
                self.connections += 1

    def close(self) -> None:
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._listener.close()


class TestSingleAttempts:
    @pytest.fixture
    def dropping(self) -> Iterator[DroppingServer]:
        dropping = DroppingServer()
        yield dropping
        dropping.close()

    def test_a_client_sends_a_failed_command_only_once(self, dropping: DroppingServer) -> None:
        with (
            RedisConfig(port=dropping.port).create_redis_client() as client,
            pytest.raises(redis_errors.ConnectionError),
        ):
            client.ping()
        assert dropping.connections == 1

    async def test_an_asynchronous_client_sends_a_failed_command_only_once(self, dropping: DroppingServer) -> None:
        client = RedisConfig(port=dropping.port).create_async_redis_client()
        with pytest.raises(redis_errors.ConnectionError):
            await client.ping()
        await client.aclose()
        assert dropping.connections == 1

    def test_a_cluster_client_sends_a_failed_command_only_once(self, dropping: DroppingServer) -> None:
        with (
            RedisConfig(port=dropping.port, cluster=True).create_redis_client() as client,
            pytest.raises(redis_errors.RedisClusterException, match="reachable node"),
        ):
            client.ping()
        assert dropping.connections == 1

    async def test_an_asynchronous_cluster_client_sends_a_failed_command_only_once(
        self, dropping: DroppingServer
    ) -> None:
        client = RedisConfig(port=dropping.port, cluster=True).create_async_redis_client()
        with pytest.raises((redis_errors.RedisError, redis_errors.RedisClusterException)):
            await client.ping()
        await client.aclose()
        assert dropping.connections == 1


class TestOptions:
    @pytest.mark.parametrize(
        ("make", "kind"), [(pool, BlockingConnectionPool), (async_pool, AsyncBlockingConnectionPool)]
    )
    def test_a_pool_waits_for_a_connection_when_all_are_in_use(self, make: Any, kind: type) -> None:
        made = make(max_connections=7, socket_timeout=9)
        assert issubclass(type(made), kind)
        assert (made.max_connections, made.timeout) == (7, 9)

    @pytest.mark.parametrize("make", [pool, async_pool])
    def test_a_client_has_time_outs_and_a_protocol(self, make: Any) -> None:
        options = make().connection_kwargs
        expected = {"protocol": 2, "socket_timeout": 15, "socket_connect_timeout": 2, "health_check_interval": 30}
        assert {name: options[name] for name in expected} == expected
        assert options["socket_keepalive"] is True
        assert options["socket_keepalive_options"][socket.TCP_KEEPINTVL] == 5
        assert options["retry"]._retries == 0

    @pytest.mark.parametrize(("make", "kind"), [(pool, SSLConnection), (async_pool, AsyncSSLConnection)])
    @pytest.mark.parametrize("address", [{"url": "rediss://h:7"}, {"host": "h", "port": 7, "ssl": True}])
    def test_tls_options_are_passed_to_connections(self, make: Any, kind: type, address: dict[str, Any]) -> None:
        made = make(**address, ssl_ca_certs="/ca", ssl_certfile="/cert", ssl_keyfile="/key")
        assert made.connection_class is kind
        options = made.connection_kwargs
        assert (options["host"], options["port"], options["ssl_cert_reqs"], options["ssl_check_hostname"]) == (
            "h", 7, "required", True,
        )  # fmt: skip
        assert (options["ssl_ca_certs"], options["ssl_certfile"], options["ssl_keyfile"]) == ("/ca", "/cert", "/key")

    def test_the_name_of_an_unverified_certificate_is_not_checked(self) -> None:
        assert pool(url="rediss://h", ssl_cert_reqs="none").connection_kwargs["ssl_check_hostname"] is False

    def test_credentials_in_the_url_are_passed_to_connections(self) -> None:
        options = pool(url="redis://bob:x%40y@h/3").connection_kwargs
        assert (options["username"], options["password"], options["db"]) == ("bob", "x@y", 3)

    async def test_a_cluster_client_gets_the_configured_options(self) -> None:
        client = RedisConfig(url="rediss://:p@h:7", cluster=True, max_connections=9).create_async_redis_client()
        assert isinstance(client, AsyncRedisCluster)
        (node,) = client.nodes_manager.startup_nodes.values()
        assert (node.host, node.port, node.max_connections, node.connection_class) == ("h", 7, 9, AsyncSSLConnection)
        assert node.connection_kwargs["password"] == "p"
        assert client.retry._retries == 0
        await client.aclose()

    @pytest.mark.parametrize("make", [pool, async_pool])
    def test_a_pool_that_uses_sentinels_has_the_configured_options(self, make: Any) -> None:
        sentinel = {"nodes": ["a:1", "b:2"], "service": "main", "username": "su", "password": "sp"}
        made = make(sentinel=sentinel, username="u", password="p", db=2, max_connections=7, ssl=True)
        assert (made.service_name, made.max_connections, made.is_master) == ("main", 7, True)
        assert issubclass(made.connection_class, (SSLConnection, AsyncSSLConnection))
        options = made.connection_kwargs
        assert (options["username"], options["password"], options["db"], options["protocol"]) == ("u", "p", 2, 2)
        assert options["retry"]._retries == 0
        asked = [client.connection_pool.connection_kwargs for client in made.sentinel_manager.sentinels]
        assert [(each["host"], each["port"]) for each in asked] == [("a", 1), ("b", 2)]
        assert {(each["username"], each["password"], each["socket_timeout"]) for each in asked} == {("su", "sp", 2.0)}
        assert {each["retry"]._retries for each in asked} == {0}


class TestEmbedded:
    def test_an_embedded_server_has_its_directory_in_the_project(
        self, configure: Configure, settings: Settings, tmp_path: Path
    ) -> None:
        settings.BASE_DIR = tmp_path
        with configure({"REDIS": "embedded://"}).create_redis_client() as client:
            made = client.connection_pool
        assert made.connection_class is EmbeddedConnection
        assert made.connection_kwargs["embedded_directory"] == str(tmp_path.resolve() / ".fairque")
        assert not (tmp_path / ".fairque").exists()  # nothing is started before it is used

    async def test_an_embedded_server_starts_when_its_client_sends_a_command(self, tmp_path: Path) -> None:
        directory = tmp_path / "server"
        config = RedisConfig(url=f"embedded://{directory}", db=1)
        try:
            with config.create_redis_client() as client:
                assert client.set("a", "b")
            other = config.create_async_redis_client()
            assert other.connection_pool.connection_class is AsyncEmbeddedConnection  # type: ignore[union-attr]
            assert await other.get("a") == b"b"
            await other.aclose()
        finally:
            EmbeddedServer(directory).stop()
