"""`RedisConfig` describes the server, and makes clients of redis-py for it.

The clients do not repeat commands themselves. The queue repeats failed requests. Each request has a nonce (a random
id), so that a repetition has no second effect. redis-py would repeat a push ten times without reporting it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import quote, unquote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from django_fairque.conf import urls
from django_fairque.engine.model.errors import ConfigurationError, short
from django_fairque.engine.model.ids import PerProcess, split_names
from django_fairque.engine.model.options import (
    InvalidOptionsError,
    Mistake,
    Number,
    Options,
    Whole,
    problem,
    seconds,
    whole,
)
from django_fairque.version import __version__

if TYPE_CHECKING:
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

ADDRESSES = ("url", "host", "cache", "sentinel")
"""The options that name the server. Exactly one of these options is used."""

PARTS_OF_URL = ("host", "port", "ssl", *urls.ACCESS_OPTIONS)
"""Options that can be given as parts of ``url`` or separately."""

SENTINEL_PORT = 26379

File = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]


class SentinelConfig(BaseModel):
    """The sentinels that know the address of the primary server, and the primary's name."""

    model_config = Options.model_config

    nodes: list[tuple[str, int]] = Field(
        min_length=1,
        description='a list of sentinels, each "host:port" or [host, port]',
        title='a sentinel, "host:port" or [host, port]',
    )
    """Host and port of each sentinel; 26379 is the default port."""
    service: str = Field(min_length=1, description="the name under which the sentinels know the primary")
    """The name under which the sentinels know the primary."""
    username: str | None = Field(default=None, description="a text")
    """The user name for the sentinels, which may differ from the one for the primary. None for no user name."""
    password: SecretStr | None = Field(default=None, repr=False, description="a text")
    """The password for the sentinels, which may differ from the one for the primary. None for no password."""

    @field_validator("nodes", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        nodes = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        return [_node(node) for node in nodes] if isinstance(nodes, (list, tuple)) else nodes


def _node(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, _, port = value.rpartition(":")
    return (host.strip("[]"), port) if host else (value, SENTINEL_PORT)


class RedisConfig(Options):
    """The server and the connections to it. Durations are seconds; docs/reference/settings.md explains each field.

    Credentials in ``url`` are moved to ``username`` and ``password``, so ``url`` may be shown.
    """

    rarely_needed: ClassVar[Collection[str]] = split_names("""
        socket_timeout socket_connect_timeout health_check_interval max_connections
    """)

    url: str | None = Field(default=None, description=f"a text: {urls.EXAMPLES}")
    host: str = Field(default="127.0.0.1", pattern=r"^[^\s/@]+$", description="a host's name or address")
    """The server's host name or address. Default: "127.0.0.1"."""
    port: Whole = whole(6379, least=1, most=65535)
    """The server's port. Default: 6379."""
    db: Whole = whole(0, least=0, most=2**31 - 1)
    """The number of the database. Default: 0."""
    username: str | None = Field(default=None, description="a text")
    password: SecretStr | None = Field(default=None, repr=False, description="a text")
    credential_provider: Any = Field(
        default=None,
        repr=False,
        description="the dotted path of a credential provider of redis-py, or of what returns one; or the object itself",
    )
    """The source of the user name and the password of each new connection, instead of ``username`` and ``password``: a
    ``redis.credentials.CredentialProvider``, a class or function that returns one, or the dotted path of these; None
    for none."""
    cache: str | None = Field(default=None, min_length=1, description="an alias of settings.CACHES")
    """An alias of ``settings.CACHES`` whose server is used; None for none."""
    sentinel: SentinelConfig | None = Field(default=None, description="a mapping with nodes and service")
    """The sentinels that know the server; None for none."""
    cluster: bool = Field(default=False, description="true or false")
    """Whether the server is a cluster. Default: False."""
    ssl: bool = Field(default=False, description="true or false")
    """Whether to use TLS. An URL with ``rediss://`` switches it on. Default: False."""
    ssl_ca_certs: File | None = Field(default=None, description="the path of a file with certificates")
    """The path of a file with the trusted certificate authorities; None for the system's authorities."""
    ssl_certfile: File | None = Field(default=None, description="the path of a certificate's file")
    """The path of the client's certificate; None for none."""
    ssl_keyfile: File | None = Field(default=None, description="the path of a key's file")
    """The path of the key of the client's certificate; None for none."""
    ssl_cert_reqs: Literal["required", "optional", "none"] = Field(
        default="required", description='"required", "optional" or "none"'
    )
    """Whether the server's certificate is verified: "required" (the default), "optional" or "none"."""
    ssl_check_hostname: bool = Field(default=True, description="true or false")
    """Whether the certificate must contain the server's name. Default: True."""
    durability: Literal["managed-log", "managed-log-async"] | None = Field(
        default=None, description='"managed-log" or "managed-log-async"'
    )
    """The durability of a managed server that keeps a log on several machines. Such a server does not report it.
    "managed-log": the log has all acknowledged writes. "managed-log-async": the log may lack the writes of the last
    seconds. None (the default): determined from the server."""
    socket_timeout: Number = seconds(15)
    """The maximum wait for a reply, and for a free connection. Default: 15."""
    socket_connect_timeout: Number = seconds(2)
    """The maximum wait until a connection is open. Default: 2."""
    health_check_interval: Number = seconds(30, least=0)
    """If a connection was unused for this time, it is tested before it is used. Default: 30."""
    max_connections: Whole = whole(100, least=1, most=10_000)
    """The maximum number of connections per process or event loop (on a cluster, also per node), from 1 to 10,000.
    Default: 100."""

    @model_validator(mode="before")
    @classmethod
    def _take_url_apart(cls, data: Any) -> Any:
        given = urls.join_urls(data.get("url")) if isinstance(data, Mapping) else None
        if not isinstance(given, str):
            return data
        url, options = urls.split_url(given)
        known = {name: value for name, value in options.items() if name in cls.model_fields}
        return {**known, **data, "url": url}

    @field_validator("url")
    @classmethod
    def _is_readable(cls, value: str | None) -> str | None:
        options = [name for name in cls.model_fields if name not in (*ADDRESSES, "port")]
        if value is not None and (wrong := urls.find_url_problem(value, options)):
            raise problem(wrong)
        return value

    @field_validator("credential_provider")
    @classmethod
    def _is_provider(cls, value: Any) -> Any:
        if value is None or callable(value) or callable(getattr(value, "get_credentials", None)):
            return value
        if isinstance(value, str) and all(part.isidentifier() for part in value.split(".")) and "." in value:
            return value
        raise ValueError("it is neither a dotted path nor a provider")

    @property
    def number_of_servers(self) -> int:
        """The number of independent servers; more than one only if ``url`` names several. Each server has one shard."""
        return urls.number_of_servers(self.url) if self.url else 1

    @property
    def servers(self) -> list[RedisConfig]:
        """One configuration for each server in ``url``, in the order of the shards."""
        if self.url is None or not (self.number_of_servers > 1 or "servers=" in self.url):
            return [self]
        return [self.model_copy(update={"url": url}) for url in _server_urls(self.url)]

    @property
    def is_embedded(self) -> bool:
        """Whether the URL names the embedded server."""
        return bool(self.url and self.url.startswith("embedded:"))

    @property
    def address(self) -> str:
        """The address of the server as a text without secrets."""
        if self.url:
            return self.url
        if self.sentinel:
            nodes = ", ".join(f"{host}:{port}" for host, port in self.sentinel.nodes)
            return f"{self.sentinel.service} (of the sentinels {nodes})"
        return f"cache {self.cache}" if self.cache else f"{self.host}:{self.port}"

    @property
    def hosts(self) -> list[str]:
        """The hosts to which connections are opened; none for a socket or the embedded server."""
        if self.sentinel:
            return [host for host, _ in self.sentinel.nodes]
        return [server.endpoint[0] for server in self.servers if server.endpoint]

    @property
    def endpoint(self) -> tuple[str, int] | None:
        """The server's host and port; None if the server is found in another way, or if there are several servers."""
        if self.cache or self.sentinel or self.number_of_servers > 1:
            return None
        if self.url is None:
            return self.host, self.port
        parts = urlsplit(self.url)
        return (unquote(parts.hostname or ""), parts.port or 6379) if parts.scheme.startswith("redis") else None

    @property
    def socket_path(self) -> str:
        """The path of the server's Unix socket; an empty text if it has none."""
        parts = urlsplit(self.url or "")
        return unquote(parts.path) if parts.scheme == "unix" else ""

    @property
    def place(self) -> str:
        """The location of the server: host and port, or the path of its socket, or the directory of the embedded
        server.
        """
        if self.endpoint:
            return f"{self.endpoint[0]}:{self.endpoint[1]}"
        return self.socket_path or self.address.removeprefix("embedded://")

    @property
    def database(self) -> str:
        """A text that identifies the database: configurations with the same text use the same database of the same
        server.
        """
        host, port = self.endpoint or ("", 0)
        place = f"{'127.0.0.1' if host == 'localhost' else host}:{port}" if host else self.socket_path or self.address
        return f"{place} number {self.db}"

    def given_addresses(self) -> list[str]:
        """Return the names of the options that name the server and that are set."""
        return [name for name in ADDRESSES if name in self.model_fields_set and getattr(self, name) is not None]

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between fields that are valid separately."""
        given = self.given_addresses()
        if len(given) > 1:
            yield Mistake("conflict", (given[-1],), f"expected one way to name the server; got {' and '.join(given)}")
        if "port" in self.model_fields_set and given and given[0] != "host":
            yield Mistake("conflict", ("port",), f"expected only together with host; got it with {given[0]}")
        if self.url and self.url.startswith("rediss:") and not self.ssl:
            yield Mistake("conflict", ("ssl",), "expected true, because the URL begins with rediss://; got False")
        if not self.ssl and not self.cache:
            for name in sorted(self.model_fields_set & {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}):
                yield Mistake("conflict", (name,), "expected only with ssl (or a rediss:// URL); got it without")
        for name in ("username", "password"):
            if self.credential_provider is not None and getattr(self, name) is not None:
                yield Mistake("conflict", (name,), "expected nothing here together with credential_provider; got both")
        yield from self._embedded_contradictions()
        yield from self._cluster_contradictions()

    def _embedded_contradictions(self) -> Iterator[Mistake]:
        for name in ("username", "password", "credential_provider", "ssl", "cluster"):
            if self.is_embedded and getattr(self, name):
                text = "expected nothing here with embedded://, whose server has no such thing"
                yield Mistake("conflict", (name,), text)

    def _cluster_contradictions(self) -> Iterator[Mistake]:
        if not self.cluster:
            return
        if self.number_of_servers > 1:
            text = "expected one URL together with it, because a node of a cluster names the others; got several"
            yield Mistake("conflict", ("cluster",), text)
        if self.sentinel or (self.url and self.url.startswith("unix:")):
            text = "expected url (redis://, rediss://) or host together with it; got neither"
            yield Mistake("conflict", ("cluster",), text)
        if self.db:
            yield Mistake("conflict", ("db",), f"expected 0, the only database of a cluster; got {self.db}")

    def create_redis_client(self, *, decode_responses: bool = False) -> Redis | RedisCluster:
        """Return a new client with a separate pool, which connects when it is first used. Close it with ``close()``.

        ``decode_responses`` shows whether the client returns text instead of bytes; False by default. Queues need
        bytes. Raises `ConfigurationError` if the cache alias, the credential provider or the directory of
        ``embedded://`` can't be found.
        """
        client: Redis | RedisCluster = _create(self, SYNC, decode_responses=decode_responses)
        return client

    def create_async_redis_client(self, *, decode_responses: bool = False) -> AsyncRedis | AsyncRedisCluster:
        """Return a new client for the event loop that first uses it. Close it with ``aclose()``.

        ``decode_responses`` and the error are the same as for `create_redis_client`.
        """
        client: AsyncRedis | AsyncRedisCluster = _create(self, ASYNC, decode_responses=decode_responses)
        return client


class Credentials:
    """A credential provider of redis-py: an object that returns a user name and a password for each new connection.

    Services with short-lived credentials (IAM of AWS, Entra ID of Azure) need a provider. redis-py calls the provider
    for each new connection, so a connection that replaces a lost one has current credentials. Open connections keep
    their credentials. If the provider raises an error, the connection fails: the request is repeated, and finally
    raises `RedisConnectionError`.
    """

    def __init__(self, provider: Any, name: str) -> None:
        self._provider = provider
        self._name = name

    def get_credentials(self) -> Any:
        """Return a user name and a password, or only a password."""
        from redis.exceptions import ConnectionError as RedisError

        try:
            return self._provider.get_credentials()
        except Exception as error:
            raise RedisError(self._failure(error)) from error

    async def get_credentials_async(self) -> Any:
        """Return the credentials in a coroutine, like `get_credentials`. If a provider lacks this method,
        `get_credentials` is called in a thread.
        """
        from redis.credentials import CredentialProvider
        from redis.exceptions import ConnectionError as RedisError

        own = getattr(type(self._provider), "get_credentials_async", None)
        if own is None or own is getattr(CredentialProvider, "get_credentials_async", None):
            return await asyncio.to_thread(self.get_credentials)
        try:
            return await self._provider.get_credentials_async()
        except Exception as error:
            raise RedisError(self._failure(error)) from error

    def _failure(self, error: Exception) -> str:
        return f"the credential provider {self._name} failed: {type(error).__name__}: {error}"


def load_credentials(given: Any) -> Credentials:
    """Return the provider that ``CREDENTIAL_PROVIDER`` names. All connections of a process use the same provider.

    ``given`` is a dotted path of a provider, or of a class or function that returns one when it is called without
    arguments; or such an object itself. Raises `ConfigurationError` if the object can't be imported, raises an error,
    or is no provider.
    """
    return _credential_loaders.get()(given)


def _load_credentials(given: Any) -> Credentials:
    name = given if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)
    try:
        found = _import(given) if isinstance(given, str) else given
        is_provider = not isinstance(found, type) and hasattr(found, "get_credentials")
        provider = found() if callable(found) and not is_provider else found
    except Exception as error:
        raise ConfigurationError(
            f"REDIS.CREDENTIAL_PROVIDER: {name} can't be used: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(provider, "get_credentials", None)):
        raise ConfigurationError(
            "REDIS.CREDENTIAL_PROVIDER: expected a redis.credentials.CredentialProvider, or a class or function that returns "
            f"one; got {short(provider)} from {name}"
        )
    return Credentials(provider, name)


# One provider for each process: a provider may have a thread that renews credentials, and threads do not survive a
# fork.
_credential_loaders = PerProcess(lambda: cache(_load_credentials))


def _import(path: str) -> Any:
    from django.utils.module_loading import import_string

    return import_string(path)


SYNC = "redis"
ASYNC = "redis.asyncio"

# With these options the system notices a dead peer after 30 + 3 × 5 seconds, even while nothing is sent. Their names
# differ between operating systems.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def close_client(client: Any) -> None:
    """Close a client, and its clients for sentinels, which redis-py does not close."""
    client.close()
    for sentinel in _sentinels(client):
        sentinel.close()


async def aclose_client(client: Any) -> None:
    """Close an asynchronous client, and its clients for sentinels, which redis-py does not close."""
    await client.aclose()
    for sentinel in _sentinels(client):
        await sentinel.aclose()


def _sentinels(client: Any) -> list[Any]:
    from django_fairque.engine.transport.cluster import is_cluster

    pool = None if is_cluster(client) else client.connection_pool
    manager = getattr(pool, "sentinel_manager", None)
    return manager.sentinels if manager else []


def _create(config: RedisConfig, package: str, *, decode_responses: bool) -> Any:
    config = resolve_cache(config)
    servers = config.servers
    if len(servers) > 1:
        from django_fairque.engine.transport import server_list

        kind = server_list.ServerList if package == SYNC else server_list.AsyncServerList
        clients = [_create(server, package, decode_responses=decode_responses) for server in servers]
        names = [server.place for server in servers]
        return kind([server_list.ListedServer(*pair) for pair in zip(names, clients, strict=True)])
    (config,) = servers
    common = {
        "protocol": 2,
        **_access(config),
        "socket_timeout": config.socket_timeout,
        "socket_connect_timeout": config.socket_connect_timeout,
        "health_check_interval": config.health_check_interval,
        "max_connections": config.max_connections,
        "decode_responses": decode_responses,
        **_name(),
        **_retry(package),
    }
    if config.cluster:
        return _cluster(config, package, common)
    if config.sentinel:
        return _primary_of_sentinels(config, package, common)
    connections = import_module("django_fairque.engine.transport.connection")
    pool = connections.FastConnectionPool if package == SYNC else connections.AsyncFastConnectionPool
    # If all connections are in use, a call waits for a free one, up to the time limit of a reply.
    options = {**common, "db": config.db, "timeout": config.socket_timeout, **_place(config, package)}
    return import_module(package).Redis.from_pool(pool(**options))


def _access(config: RedisConfig) -> dict[str, Any]:
    if config.credential_provider is not None:
        return {"credential_provider": load_credentials(config.credential_provider)}
    return {
        "username": config.username,
        "password": config.password.get_secret_value() if config.password else None,
    }


@cache
def _name() -> dict[str, Any]:
    """Return the options with which CLIENT LIST shows the name of this package for its connections: redis-py together
    with this package.

    redis-py 8.1 accepts the name from its caller. Otherwise it determines its own version again for each connection,
    which takes 3.5 of the 4 ms that a new connection takes. redis-py 5.1 determines its version only once, and accepts
    no name.
    """
    try:
        driver_info = import_module("redis.driver_info").DriverInfo()
    except ImportError:
        return {}
    return {"driver_info": driver_info.add_upstream_driver("django-fairque", __version__)}


def _retry(package: str) -> dict[str, Any]:
    no_backoff = import_module("redis.backoff").NoBackoff()
    return {"retry": import_module(f"{package}.retry").Retry(no_backoff, 0)}


def _place(config: RedisConfig, package: str) -> dict[str, Any]:
    """Return the class for the connections, and the options with their address."""
    connection = import_module(f"{package}.connection")
    if config.is_embedded:
        from django_fairque.embedded import connection_pool_kwargs

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
    options = {name: getattr(config, name) for name in urls.ACCESS_OPTIONS if name.startswith("ssl_")}
    return {**options, "ssl_check_hostname": config.ssl_check_hostname and config.ssl_cert_reqs != "none"}


def _primary_of_sentinels(config: RedisConfig, package: str, common: dict[str, Any]) -> Any:
    sentinel = config.sentinel
    assert sentinel is not None  # noqa: S101 - checked by the caller
    module = import_module(f"{package}.sentinel")
    alike = {**_retry(package), **_keepalive(), "ssl": config.ssl, **_tls(config)}
    ask = {
        "protocol": 2,
        "username": sentinel.username,
        "password": sentinel.password.get_secret_value() if sentinel.password else None,
        # a short time-out: if a sentinel does not answer, the next one is tried
        "socket_timeout": config.socket_connect_timeout,
        "socket_connect_timeout": config.socket_connect_timeout,
    }
    manager = module.Sentinel(sentinel.nodes, sentinel_kwargs={**ask, **alike})
    # Unlike other pools, this pool does not wait but raises an error if all connections are in use. The queue then
    # repeats the call.
    return manager.master_for(sentinel.service, **{**common, "db": config.db, **alike})


def _cluster(config: RedisConfig, package: str, common: dict[str, Any]) -> Any:
    options = {**common, **_tcp(config), "ssl": config.ssl, **_tls(config), **_cluster_retry(package)}
    if package == ASYNC:
        return import_module("redis.asyncio.cluster").RedisCluster(**options)
    from django_fairque.engine.transport.cluster import LazyRedisCluster

    return LazyRedisCluster(**options)


def _cluster_retry(package: str) -> dict[str, Any]:
    options = _retry(package)
    if import_module("redis").VERSION < (6,):
        # This redis-py version counts attempts in another way: with 0, it would not even send a coroutine's pipeline
        # once. One repetition is harmless, because such pipelines contain only requests that change nothing.
        # Redirections to another node are still followed.
        options["cluster_error_retry_attempts"] = 1 if package == ASYNC else 0
    return options


def resolve_cache(config: RedisConfig) -> RedisConfig:
    """If the configuration names a cache alias, replace the alias by the cache's server. Options that ``config`` sets
    itself are kept.

    Raises:
        InvalidOptionsError: The cache can't be used.
    """
    if not config.cache:
        return config
    from django.conf import settings

    from django_fairque.conf.caches import UnusableCacheError, read_cache_options

    given = {name: getattr(config, name) for name in config.model_fields_set - {"cache"}}
    factory = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)
    try:
        options = read_cache_options(config.cache, settings.CACHES, factory, is_cluster=config.cluster)
        return RedisConfig(**{**options, **given})
    except UnusableCacheError as error:
        text = str(error)
    except ConfigurationError as error:
        text = f"cache {config.cache!r} can't be used as it is: {error}"
    raise InvalidOptionsError([Mistake("cache", ("redis", "cache"), text)])


def _server_urls(url: str) -> Iterator[str]:
    for server_url in urls.separate_urls(url):
        if server_url.startswith("embedded:"):
            yield from (f"embedded://{quote(str(directory))}" for directory in embedded_directories(server_url))
        else:
            yield server_url


def embedded_directories(url: str) -> list[Path]:
    """Return the directories of the embedded servers in an ``embedded://`` URL, in the order of the shards:
    ``.fairque``, ``.fairque-1`` and so on.
    """
    place, number = urls.place_and_servers(url)
    first = embedded_directory(place)
    return [first, *(first.with_name(f"{first.name}-{shard}") for shard in range(1, number))]


def embedded_directory(url: str) -> Path:
    """Return the directory of the embedded server in an ``embedded://`` URL. The default is ``.fairque`` in
    ``BASE_DIR``.
    """
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured

    from django_fairque.embedded import directory_from_url  # this import needs redis-py

    base = None
    with suppress(ImproperlyConfigured):  # a script may have no Django settings
        base = getattr(settings, "BASE_DIR", None)
    return directory_from_url(url, Path(base or Path.cwd()))
