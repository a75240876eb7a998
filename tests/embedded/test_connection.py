"""redis-py's clients over the embedded server."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_fairque.embedded import EmbeddedServer, connection_pool_kwargs, probe
from django_fairque.engine.model.errors import ConfigurationError
from tests.embedded.helpers import (
    closing_socket,
    fill,
    kill,
    only_server_of,
    program,
    servers_of,
    starts_in_log,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.embedded.conftest import MakeEmbedded


def client(embedded: EmbeddedServer, retries: int = 0, **options: Any) -> redis.Redis:
    kwargs = connection_pool_kwargs(embedded.directory, **options)
    kwargs |= {"retry": Retry(NoBackoff(), retries), "retry_on_error": [redis.ConnectionError]}
    return redis.Redis.from_pool(redis.ConnectionPool(protocol=2, **kwargs))


def async_client(embedded: EmbeddedServer, retries: int = 0, **options: Any) -> redis.asyncio.Redis:
    kwargs = connection_pool_kwargs(embedded.directory, asynchronous=True, **options)
    kwargs |= {"retry": AsyncRetry(NoBackoff(), retries), "retry_on_error": [redis.ConnectionError]}
    return redis.asyncio.Redis.from_pool(redis.asyncio.ConnectionPool(protocol=2, **kwargs))


class TestSync:
    def test_the_embedded_server_starts_at_the_first_command(self, embedded: EmbeddedServer) -> None:
        with client(embedded) as redis_:
            assert not embedded.directory.exists()
            assert redis_.ping()

    def test_a_command_in_flight_is_not_repeated_after_a_crash(self, embedded: EmbeddedServer) -> None:
        with client(embedded) as redis_, client(embedded) as watcher:
            redis_.set("k", "v")
            raised: list[type[Exception]] = []

            def wait_for_a_job() -> None:
                try:
                    redis_.blpop(["jobs"], timeout=30)
                except redis.ConnectionError as error:
                    raised.append(type(error))

            thread = threading.Thread(target=wait_for_a_job)
            thread.start()
            wait_until(lambda: watcher.info("clients")["blocked_clients"] == 1)
            kill(embedded.directory)
            thread.join(30)
            assert raised == [redis.ConnectionError]
            assert redis_.get("k") == b"v"
        assert starts_in_log(embedded.directory) == 2

    def test_a_client_with_retries_survives_a_server_crash(self, embedded: EmbeddedServer) -> None:
        with client(embedded, retries=1) as redis_:
            redis_.set("k", "v")
            before = kill(embedded.directory)
            assert redis_.get("k") == b"v"
        assert only_server_of(embedded.directory) != before

    def test_a_socket_about_to_close_is_not_taken_for_the_server(self, embedded: EmbeddedServer) -> None:
        with client(embedded, retries=1) as consumer, client(embedded) as producer:
            popped: list[object] = []
            thread = threading.Thread(target=lambda: popped.append(consumer.blpop(["jobs"], timeout=30)))
            thread.start()
            wait_until(lambda: producer.info("clients")["blocked_clients"] == 1)
            with closing_socket(embedded.socket):
                kill(embedded.directory)
            producer.rpush("jobs", "job")
            thread.join(30)
        assert popped == [(b"jobs", b"job")]

    def test_a_waiting_consumer_gets_tasks_after_a_crash(self, embedded: EmbeddedServer) -> None:
        with client(embedded, retries=1) as consumer, client(embedded, retries=1) as producer:
            popped: list[object] = []
            thread = threading.Thread(target=lambda: popped.append(consumer.blpop(["jobs"], timeout=30)))
            thread.start()
            wait_until(lambda: producer.info("clients")["blocked_clients"] == 1)
            kill(embedded.directory)
            producer.rpush("jobs", "job")
            thread.join(30)
        assert popped == [(b"jobs", b"job")]
        only_server_of(embedded.directory)

    def test_errors_are_those_of_the_queue(
        self, embedded: EmbeddedServer, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with client(embedded, binary=place / "gone") as redis_, pytest.raises(ConfigurationError, match="gone"):
            redis_.ping()

    def test_options_of_the_url_reach_the_server(self, embedded: EmbeddedServer) -> None:
        with client(embedded, appendfsync="always") as redis_:
            redis_.ping()
        aof = embedded.status().aof
        assert aof is not None
        assert aof.appendfsync == "always"


class TestAsync:
    @pytest.fixture
    async def aclient(self, embedded: EmbeddedServer) -> AsyncIterator[redis.asyncio.Redis]:
        client = async_client(embedded)
        yield client
        await client.aclose()

    async def test_the_first_command_starts_the_server(
        self, embedded: EmbeddedServer, aclient: redis.asyncio.Redis
    ) -> None:
        assert not embedded.directory.exists()
        assert await aclient.ping()

    async def test_a_command_in_flight_is_not_repeated_after_a_crash(
        self, embedded: EmbeddedServer, aclient: redis.asyncio.Redis
    ) -> None:
        await aclient.set("k", "v")

        async def wait_for_a_job() -> object:
            return await aclient.blpop(["jobs"], timeout=30)

        waiting = asyncio.create_task(wait_for_a_job())
        with client(embedded) as watcher:
            await asyncio.to_thread(wait_until, lambda: watcher.info("clients")["blocked_clients"] == 1)
        kill(embedded.directory)
        with pytest.raises(redis.ConnectionError):
            await waiting
        assert await aclient.get("k") == b"v"
        assert starts_in_log(embedded.directory) == 2

    async def test_a_client_with_retries_survives_a_server_crash(self, embedded: EmbeddedServer) -> None:
        async with async_client(embedded, retries=1) as client:
            await client.set("k", "v")
            before = kill(embedded.directory)
            assert await client.get("k") == b"v"
        assert only_server_of(embedded.directory) != before

    async def test_a_socket_about_to_close_is_not_taken_for_the_server(self, embedded: EmbeddedServer) -> None:
        async with async_client(embedded, retries=1) as consumer:
            waiting = asyncio.ensure_future(consumer.blpop(["jobs"], timeout=30))
            with client(embedded) as producer:
                await asyncio.to_thread(wait_until, lambda: producer.info("clients")["blocked_clients"] == 1)
                with closing_socket(embedded.socket) as end:
                    await asyncio.to_thread(kill, embedded.directory)
                    await asyncio.to_thread(end.join, 15)
                producer.rpush("jobs", "job")
            assert await waiting == (b"jobs", b"job")

    async def test_errors_are_those_of_the_queue(self, embedded: EmbeddedServer, place: Path) -> None:
        async with async_client(embedded, binary=place / "gone") as client:
            with pytest.raises(ConfigurationError, match="gone"):
                await client.ping()


class TestWhileLoading:
    """The server loads 5,000 commands at 0.2 ms each; it would answer a new client with LOADING."""

    @pytest.fixture
    def loading(self, embedded: EmbeddedServer, make_embedded: MakeEmbedded, place: Path) -> Iterator[EmbeddedServer]:
        fill(embedded, 5000)
        kill(embedded.directory)
        slowly = "if arguments != ['--version']: arguments += ['--key-load-delay', '500']\n"
        slow = make_embedded(binary=program(place / "slow", f"{slowly}os.execv(binary, [binary, *arguments])"))
        starter = threading.Thread(target=slow.ensure)
        starter.start()
        wait_until(lambda: probe.ping(Path(slow.socket), 1) is probe.PingResult.LOADING)
        yield embedded
        starter.join()

    def test_a_new_connection_waits_until_the_server_has_loaded(self, loading: EmbeddedServer) -> None:
        with client(loading) as redis_:
            assert redis_.get("k4999") == b"4999"

    async def test_a_new_connection_of_a_coroutine_waits(self, loading: EmbeddedServer) -> None:
        async with async_client(loading) as client:
            assert await client.get("k4999") == b"4999"


def test_a_killed_server_is_not_restarted_without_a_command(embedded: EmbeddedServer) -> None:
    with client(embedded) as redis_:
        redis_.ping()
        kill(embedded.directory)
    assert servers_of(embedded.directory) == []
