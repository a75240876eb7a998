"""A task is enqueued and run with nothing but ``{"CACHE": "queues"}``, on real servers of every form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
from django.core.cache import caches

from django_fairque import TaskState, get_queue, task
from django_fairque.conf import aclose_queues, close_queues
from django_fairque.tasks import registry
from django_fairque.worker import AsyncWorker, Worker
from tests.topologies import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from tests.conftest import MakeServer
    from tests.servers import Server

# The workers run in this process, and look after the database connections that other tests have left open here.
pytestmark = pytest.mark.django_db(transaction=True)

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"

both = pytest.mark.parametrize("backend", [DJANGO, DJANGO_REDIS])


class Serve(Protocol):
    """Configure the alias, enqueue a task, run it."""

    def __call__(self, backend: str, location: Any, options: dict[str, Any] | None = None, **redis: Any) -> None: ...


@pytest.fixture
def serve(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(registry, "_tasks", {})

    def serve(backend: str, location: Any, options: dict[str, Any] | None = None, **redis: Any) -> None:
        settings.CACHES = {
            "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
            "queues": {"BACKEND": backend, "LOCATION": location, "KEY_PREFIX": "shop", "OPTIONS": options or {}},
        }
        settings.FAIRQUE = {"REDIS": {"CACHE": "queues", **redis}}

        @task(name="double")
        def double(number: int) -> int:
            return 2 * number

        result = double.enqueue(4)
        Worker(burst=True, poll_interval=0.1).run()
        assert (result.state, result.result()) == (TaskState.FINISHED, 8)

    yield serve
    close_queues()


@pytest.fixture
def tcp(make_server: MakeServer) -> tuple[Server, int]:
    port = free_port()
    return make_server("--port", str(port), "--bind", "127.0.0.1"), port


def databases(server: Server, **options: Any) -> set[str]:
    with server.client(**options) as client:
        return set(client.info("keyspace"))


@pytest.mark.parametrize(
    ("backend", "path"), [(DJANGO, "unix://{}?db=3"), (DJANGO_REDIS, "unix://{}?db=3&socket_timeout=0.001")]
)
def test_a_queue_uses_the_unix_socket_of_a_cache(
    serve: Serve, server: Server, redis: Redis, backend: str, path: str
) -> None:
    serve(backend, path.format(server.socket))
    assert databases(server) == {"db3"}


@pytest.mark.parametrize(("backend", "as_list"), [(DJANGO, False), (DJANGO_REDIS, True)])
def test_a_queue_uses_the_first_of_several_locations_of_a_cache(
    serve: Serve, tcp: tuple[Server, int], backend: str, as_list: bool
) -> None:
    server, port = tcp
    locations = [f"redis://127.0.0.1:{port}/2", "redis://127.0.0.1:1/2"]
    serve(backend, locations if as_list else ",".join(locations))
    assert databases(server) == {"db2"}


@both
def test_a_queue_uses_the_database_in_the_options_of_a_cache(
    serve: Serve, tcp: tuple[Server, int], backend: str
) -> None:
    server, port = tcp
    options: dict[str, Any] = {"db": 5} if backend == DJANGO else {"CONNECTION_POOL_KWARGS": {"db": 5}}
    serve(backend, f"redis://127.0.0.1:{port}", options)
    assert databases(server) == {"db5"}


@pytest.mark.parametrize(
    ("backend", "place", "user"), [(DJANGO, "url", "bob"), (DJANGO, "options", ""), (DJANGO_REDIS, "options", "bob")]
)
def test_a_queue_uses_the_password_and_the_user_of_a_cache(
    serve: Serve, tcp: tuple[Server, int], backend: str, place: str, user: str
) -> None:
    server, port = tcp
    rules = ["resetpass", ">hunter 2@", "on", "~*", "&*", "+@all"]
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", user or "default", *rules)
        if user:
            client.execute_command("ACL", "SETUSER", "default", "off")
    if place == "url":
        serve(backend, f"redis://{user}:hunter%202%40@127.0.0.1:{port}/1")
    else:
        said = {"password": "hunter 2@", **({"username": user} if user else {})}
        options = said if backend == DJANGO else {name.upper(): value for name, value in said.items()}
        serve(backend, f"redis://127.0.0.1:{port}/1", options)
    assert databases(server, username=user or None, password="hunter 2@") == {"db1"}


def test_a_queue_uses_the_sentinels_of_django_redis(serve: Serve, sentinel: int) -> None:
    options = {
        "CLIENT_CLASS": "django_redis.client.SentinelClient",
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [("127.0.0.1", sentinel)],
    }
    serve(DJANGO_REDIS, "redis://main/2", options)
    caches["queues"].set("here too", 1)
    client: Any = get_queue().client
    assert client.exists("shop:1:here too") == 1  # django-redis is on the same server and database
    caches["queues"].close()


def test_a_queue_uses_the_cluster_of_a_cache(serve: Serve, cluster: int) -> None:
    options = {"REDIS_CLIENT_CLASS": "redis.cluster.RedisCluster", "CONNECTION_FACTORY": "shop.ClusterFactory"}
    serve(DJANGO_REDIS, [f"redis://127.0.0.1:{cluster}", "redis://127.0.0.1:1"], options, CLUSTER=True)


@both
def test_a_queue_does_not_use_the_timeouts_of_a_cache(serve: Serve, server: Server, redis: Redis, backend: str) -> None:
    """A cache's time-outs would end each wait for work with an error."""
    short = {"socket_timeout": 0.0001, "socket_connect_timeout": 0.0001}
    serve(backend, server.url, short if backend == DJANGO else {name.upper(): value for name, value in short.items()})
    client: Any = get_queue().client
    assert client.connection_pool.connection_kwargs["socket_timeout"] == 15


@both
def test_clearing_a_cache_deletes_all_keys_of_its_database(
    serve: Serve, server: Server, redis: Redis, backend: str
) -> None:
    """Why fairque.W002 warns: the prefix is no protection."""
    serve(backend, server.url)
    assert databases(server) == {"db0"}
    caches["queues"].clear()
    assert databases(server) == set()
    caches["queues"].close()


async def test_an_asynchronous_queue_uses_the_server_of_a_cache(
    settings: Settings, tcp: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    settings.CACHES = {"queues": {"BACKEND": DJANGO_REDIS, "LOCATION": f"redis://127.0.0.1:{tcp[1]}/6"}}
    settings.FAIRQUE = {"REDIS": {"CACHE": "queues"}}

    @task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    result = await double.aenqueue(4)
    await AsyncWorker(burst=True, poll_interval=0.1).run()
    assert await result.aresult() == 8
    await aclose_queues()
    assert databases(tcp[0]) == {"db6"}
