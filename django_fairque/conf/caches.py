"""A server named by an alias of ``settings.CACHES``: its place and credentials, never its pool or its time-outs.

A cache's time-outs are short because a cache may fail; a worker waits for seconds on purpose.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django_fairque.engine.errors import ConfigurationError
from django_fairque.engine.options import InvalidOptionsError, Mistake, nearest, shown

from . import urls
from .redis import RedisConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"

TAKEN = (
    "db",
    "username",
    "password",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
"""The options of a cache that say where and who; a `RedisConfig` has them under the same names."""

_NOT_TAKEN = re.compile(
    r"ssl_.*|credential_provider|connection_class|redis_connect_func|CONNECTION_FACTORY|CLIENT_CLASS"
)
_USUAL = (
    "django_redis.pool.ConnectionFactory",
    "django_redis.client.DefaultClient",
    "django_redis.client.default.DefaultClient",
    "django_redis.client.HerdClient",
    "django_redis.client.herd.HerdClient",
)


def resolve(config: RedisConfig, caches: Mapping[str, Any]) -> RedisConfig:
    """The configuration with the alias replaced by what it stands for; what ``config`` sets itself wins.

    Raises `ConfigurationError` when the alias can't be used.
    """
    given = {name: getattr(config, name) for name in config.model_fields_set - {"cache"}}
    try:
        return RedisConfig(**{**_options(str(config.cache), caches), **given})
    except _UnusableError as error:
        text = str(error)
    except ConfigurationError as error:
        text = f"cache {config.cache!r} can't be used as it is: {error}"
    raise InvalidOptionsError([Mistake("cache", ("cache",), text)])


class _UnusableError(Exception):
    pass


def _options(alias: str, caches: Mapping[str, Any]) -> dict[str, Any]:
    if alias not in caches:
        suggestion = nearest(alias, caches)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        raise _UnusableError(f"expected one of the caches {', '.join(caches)}; got {shown(alias)}{hint}")
    cache = {str(name).upper(): value for name, value in caches[alias].items()}
    kind = _kind(alias, str(cache.get("BACKEND")))
    location, options = _primary(cache.get("LOCATION"), alias), dict(cache.get("OPTIONS") or {})
    if kind == DJANGO:
        return {**_location(location), **_taken(alias, options)}
    credentials = {name.lower(): options[name] for name in ("USERNAME", "PASSWORD") if options.get(name)}
    taken = _taken(alias, {**credentials, **options.get("CONNECTION_POOL_KWARGS", {})})
    if options.get("SENTINELS"):
        return {**_sentinel(location, options), **taken}
    _refuse(alias, {name: value for name, value in options.items() if value not in _USUAL})
    return {**_location(location), **taken}


def _kind(alias: str, backend: str) -> str:
    """Which of the two known backends it is, or is derived from."""
    try:
        module, _, name = backend.rpartition(".")
        bases = getattr(import_module(module), name).__mro__
    except (ImportError, ValueError, AttributeError) as error:
        raise _UnusableError(
            f"cache {alias!r} has the backend {backend!r}, which can't be imported: {error}"
        ) from error
    names = [f"{base.__module__}.{base.__qualname__}" for base in bases]
    kind = next((known for known in (DJANGO, DJANGO_REDIS) if known in names), "")
    if not kind:
        raise _UnusableError(f"expected a cache with the backend {DJANGO_REDIS} or {DJANGO}; {alias!r} has {backend}")
    return kind


def _primary(location: Any, alias: str) -> str:
    """The server that is written to, which both backends name first."""
    servers = re.split("[;,]", location) if isinstance(location, str) else list(location or [])
    if not servers or not servers[0]:
        raise _UnusableError(f"cache {alias!r} has no LOCATION")
    return str(servers[0]).strip()


def _location(location: str) -> dict[str, Any]:
    """The URL without the options that are a cache's own affair."""
    parts = urlsplit(location)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name in TAKEN]
    base = location.partition("?")[0]
    return {"url": f"{base}?{urlencode(query)}" if query else base}


def _taken(alias: str, options: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(alias, options)
    return {name: options[name] for name in TAKEN if options.get(name) is not None}


def _refuse(alias: str, options: Mapping[str, Any]) -> None:
    """Stop at an option without which the server could not be reached, or not as safely."""
    for name in options:
        if _NOT_TAKEN.fullmatch(name) and name not in TAKEN:
            raise _UnusableError(
                f"cache {alias!r} has the option {name}, which can't be taken over; configure REDIS itself"
            )


def _sentinel(location: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """django-redis' form: the URL's host is the service, the sentinels are among the options."""
    service = urlsplit(location).hostname or ""
    found = urls.split(location)[1]
    ask = options.get("SENTINEL_KWARGS") or {}
    sentinel = {name: ask[name] for name in ("username", "password") if ask.get(name)}
    sentinel |= {"service": service, "nodes": options["SENTINELS"]}
    return {**{name: found[name] for name in (*TAKEN, "ssl") if name in found}, "sentinel": sentinel}
