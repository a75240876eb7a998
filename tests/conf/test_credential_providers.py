"""A server whose users' passwords change while programs run, as with the tokens of a cloud service."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from django_fairque import ConfigurationError, RedisConnectionError
from django_fairque.conf import RedisConfig, aclose_queues, aget_queue, get_queue
from django_fairque.conf.redis import (
    _credential_loaders,
    aclose_client,
    close_client,
    load_credentials,
)
from django_fairque.engine.model.errors import ServerRefusedError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.topologies import make_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from pytest_django import Settings

    from tests.conftest import MakeServer

PROVIDER = f"{__name__}.Tokens"


class Tokens(CredentialProvider):
    """Hands out the token of the moment."""

    token = "first"
    calls = 0
    threads: set[int] = set()  # noqa: RUF012 - cleared for each test
    error: Exception | None = None

    def get_credentials(self) -> tuple[str, str]:
        Tokens.calls += 1
        Tokens.threads.add(threading.get_ident())
        if Tokens.error is not None:
            raise Tokens.error
        return "shop", Tokens.token


class AwaitedTokens(Tokens):
    async def get_credentials_async(self) -> tuple[str, str]:
        await asyncio.sleep(0)
        return self.get_credentials()


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    Tokens.token, Tokens.calls, Tokens.error = "first", 0, None
    Tokens.threads.clear()
    _credential_loaders.take()
    yield
    _credential_loaders.take()


def permit(admin: redis.Redis, *tokens: str) -> None:
    """Let the user in with these tokens only, and nobody without one."""
    rules = ["reset", "on", *(f">{token}" for token in tokens), "~*", "&*", "+@all"]
    admin.execute_command("ACL SETUSER", "shop", *rules)
    admin.execute_command("ACL SETUSER", "default", "reset", "on", ">admin", "~*", "&*", "+@all")


def disconnect(admin: redis.Redis) -> None:
    """Close the connections of the user, like a service whose tokens have expired."""
    admin.execute_command("CLIENT KILL", "USER", "shop")


@pytest.fixture
def admin(make_server: MakeServer) -> Iterator[redis.Redis]:
    """The connection of an operator to a server that asks everyone else for a password."""
    with make_server().client() as client:
        client.ping()  # this connects before the password is set, and the connection stays
        permit(client, "first")
        yield client
        client.execute_command("ACL SETUSER", "default", "reset", "on", "nopass", "~*", "&*", "+@all")


@pytest.fixture
def url(admin: redis.Redis) -> str:
    return f"unix://{admin.connection_pool.connection_kwargs['path']}"


def test_a_new_connection_has_the_token_of_the_moment(admin: redis.Redis, url: str) -> None:
    """The raw connection of calls is one of the client's pool."""
    client = RedisConfig(url=url, credential_provider=PROVIDER).create_redis_client()
    queue = FairQueue(client, "mail")
    queue.push(Task.create("u", 3, 1))
    assert queue._transport._connection.is_usable
    assert Tokens.calls == 1
    Tokens.token = "second"
    permit(admin, "second")
    disconnect(admin)
    queue.push(Task.create("u", 3, 2))
    assert [lease.payload for lease in queue.pop_batch(5, "w")] == [1, 2]
    assert Tokens.calls == 2
    close_client(client)


@pytest.mark.parametrize("provider", [Tokens, AwaitedTokens])
async def test_a_new_asynchronous_connection_gets_current_credentials(
    admin: redis.Redis, url: str, provider: Any
) -> None:
    client: Any = RedisConfig(url=url, credential_provider=provider).create_async_redis_client()
    queue = AsyncFairQueue(client, "mail")
    await queue.push(Task.create("u", 3, 1))
    Tokens.token = "second"
    permit(admin, "second")
    disconnect(admin)
    await queue.push(Task.create("u", 3, 2))
    assert [lease.payload for lease in await queue.pop_batch(5, "w")] == [1, 2]
    if hasattr(CredentialProvider, "get_credentials_async"):  # earlier clients call the other one
        is_called_in_the_loop = threading.get_ident() in Tokens.threads
        assert is_called_in_the_loop == (provider is AwaitedTokens)
    await aclose_client(client)


async def test_queues_of_the_settings_use_the_credential_provider(url: str, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": url, "CREDENTIAL_PROVIDER": PROVIDER}}
    await asyncio.to_thread(lambda: get_queue().push(Task.create("u", 3, 1)))
    assert await (await aget_queue()).pop("w") is not None
    await aclose_queues()


def test_a_cluster_client_uses_the_credential_provider(make_server: MakeServer) -> None:
    nodes = make_cluster(make_server, 2)
    for _, server in nodes:
        with server.client() as client:
            client.execute_command("ACL SETUSER", "shop", "on", ">first", "~*", "&*", "+@all")
            client.execute_command("ACL SETUSER", "default", "resetpass", "off")
    made = RedisConfig(host="127.0.0.1", port=nodes[0][0], cluster=True, credential_provider=Tokens)
    client = made.create_redis_client()
    assert all(client.set(f"key-{number}", "x") for number in range(20))
    assert Tokens.calls >= 2
    close_client(client)

    async def awaited() -> None:
        other: Any = made.create_async_redis_client()
        assert await other.get("key-1") == b"x"
        await aclose_client(other)

    asyncio.run(awaited())


@pytest.mark.parametrize("make", ["create_redis_client", "create_async_redis_client"])
def test_the_primary_uses_the_credential_provider_and_sentinels_do_not(make: str) -> None:
    sentinel: Any = {"nodes": ["a:1"], "service": "main"}
    pool = getattr(RedisConfig(sentinel=sentinel, credential_provider=Tokens), make)().connection_pool
    assert pool.connection_kwargs["credential_provider"].get_credentials() == ("shop", "first")
    assert "username" not in pool.connection_kwargs
    (asked,) = pool.sentinel_manager.sentinels
    assert asked.connection_pool.connection_kwargs.get("credential_provider") is None


class TestFailures:
    def test_a_provider_that_fails_is_called_again_until_the_request_times_out(
        self, url: str, settings: Settings
    ) -> None:
        settings.FAIRQUE = {
            "REDIS": {"URL": url, "CREDENTIAL_PROVIDER": PROVIDER},
            "QUEUE": {"REQUEST_TIMEOUT": 0.1},
        }
        Tokens.error = OSError("the token service is away")
        with pytest.raises(RedisConnectionError) as raised:
            get_queue().push(Task.create("u", 3, 1))
        words = f"the credential provider {PROVIDER} failed: OSError: the token service is away"
        assert words in str(raised.value)
        assert Tokens.calls > 1
        Tokens.error = None
        get_queue().push(Task.create("u", 3, 1))

    def test_a_token_that_has_expired_is_refused(self, url: str, settings: Settings) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": url, "CREDENTIAL_PROVIDER": PROVIDER}}
        Tokens.token = "zeroth"
        with pytest.raises(ServerRefusedError, match="the server refused the user name or password"):
            get_queue().push(Task.create("u", 3, 1))


def make_tokens() -> Tokens:
    return Tokens()


TOKENS = Tokens()
NO_PROVIDER = object()


def fail() -> Tokens:
    raise OSError("no network")


class TestNames:
    @pytest.mark.parametrize("name", ["Tokens", "make_tokens", "TOKENS"])
    @pytest.mark.parametrize("as_path", [True, False])
    def test_a_provider_or_a_callable_that_returns_one_is_accepted(self, name: str, as_path: bool) -> None:
        given = f"{__name__}.{name}" if as_path else globals()[name]
        found = load_credentials(given)
        assert found.get_credentials() == ("shop", "first")
        assert load_credentials(given) is found, "one for all connections"

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("nowhere.at.all", "nowhere.at.all can't be used: ModuleNotFoundError"),
            (f"{__name__}.Tokns", "can't be used: ImportError"),
            (f"{__name__}.fail", "can't be used: OSError: no network"),
            (f"{__name__}.NO_PROVIDER", "expected a redis.credentials.CredentialProvider"),
        ],
    )
    def test_a_path_that_leads_to_no_provider_is_refused(self, path: str, words: str) -> None:
        with pytest.raises(ConfigurationError) as raised:
            RedisConfig(credential_provider=path).create_redis_client()
        assert words in str(raised.value)

    @pytest.mark.parametrize("given", [7, "", "tokens", "a..b", {"path": "a.b"}])
    def test_a_value_that_is_no_dotted_path_of_a_provider_is_refused(self, given: Any) -> None:
        with pytest.raises(ConfigurationError, match="expected the dotted path of a credential provider of redis-py"):
            RedisConfig(credential_provider=given)

    @pytest.mark.parametrize("other", [{"password": "x"}, {"username": "x"}, {"url": "redis://u:p@h"}])
    def test_a_credential_provider_together_with_a_password_or_user_is_refused(self, other: Any) -> None:
        with pytest.raises(ConfigurationError, match="expected nothing here together with credential_provider"):
            RedisConfig(credential_provider=PROVIDER, **other)

    def test_the_credential_provider_of_a_cache_is_used(self, url: str, settings: Settings) -> None:
        settings.CACHES = {
            "queues": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": url,
                "OPTIONS": {"credential_provider": UsernamePasswordCredentialProvider("shop", "first")},
            }
        }
        client = RedisConfig(cache="queues").create_redis_client()
        assert client.ping()
        close_client(client)
