"""Reads the server of an alias of ``settings.CACHES``. The address and the credentials of the cache are used, but not
its connection pool and time-outs.

The time-outs of a cache are short, because a cache may fail. A worker, in contrast, waits for seconds on purpose.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django_fairque.engine.model.errors import nearest
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.options import show

from . import urls

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"

_NOT_TAKEN = re.compile(
    r"ssl_.*|connection_class|redis_connect_func|CONNECTION_FACTORY|CLIENT_CLASS|REDIS_CLIENT_CLASS"
)
_CLASSES = ("CONNECTION_FACTORY", "CLIENT_CLASS", "REDIS_CLIENT_CLASS")
_USUAL = split_names("""
    redis.Redis redis.StrictRedis redis.client.Redis redis.client.StrictRedis django_redis.pool.ConnectionFactory
    django_redis.client.DefaultClient django_redis.client.default.DefaultClient django_redis.client.HerdClient
    django_redis.client.herd.HerdClient
""")


class UnusableCacheError(Exception):
    """A cache alias whose server can't be used. The error's text explains the reason."""


def read_cache_options(
    alias: str, caches: Mapping[str, Any], factory: str | None, *, is_cluster: bool
) -> dict[str, Any]:
    """Return the options of a `RedisConfig` for the server of a cache.

    Args:
        alias: The name of the cache in ``caches``.
        caches: The value of ``settings.CACHES``.
        factory: The connection factory of django-redis, for caches that do not name one.
        is_cluster: Whether the server is a node of a cluster.

    Raises:
        UnusableCacheError: The cache can't be used.
    """
    if alias not in caches:
        suggestion = nearest(alias, caches)
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        raise UnusableCacheError(f"expected one of the caches {', '.join(caches)}; got {show(alias)}{hint}")
    cache = {str(name).upper(): value for name, value in caches[alias].items()}
    kind = _kind(alias, str(cache.get("BACKEND")))
    location, options = _primary(cache.get("LOCATION"), alias, kind), dict(cache.get("OPTIONS") or {})
    if kind == DJANGO:
        return _build_server_options(alias, location, options)
    credentials = {name.lower(): options[name] for name in ("USERNAME", "PASSWORD") if options.get(name)}
    own = {**credentials, **(options.get("CONNECTION_POOL_KWARGS") or {})}
    if options.get("SENTINELS"):
        return _sentinel(alias, location, options, own)
    if not is_cluster:  # for a cluster, only the address and the options of the cache are used
        classes = {"CONNECTION_FACTORY": factory, **options}
        _refuse(alias, {name: classes[name] for name in _CLASSES if classes.get(name) not in (None, *_USUAL)})
    return _build_server_options(alias, location, own)


def _kind(alias: str, backend: str) -> str:
    """Return which of the two supported cache backends this backend is or extends."""
    try:
        module, _, name = backend.rpartition(".")
        bases = getattr(import_module(module), name).__mro__
    except (ImportError, ValueError, AttributeError) as error:
        raise UnusableCacheError(
            f"cache {alias!r} has the backend {backend!r}, which can't be imported: {error}"
        ) from error
    names = [f"{base.__module__}.{base.__qualname__}" for base in bases]
    kind = next((known for known in (DJANGO, DJANGO_REDIS) if known in names), "")
    if not kind:
        raise UnusableCacheError(
            f"expected a cache with the backend {DJANGO_REDIS} or {DJANGO}; {alias!r} has {backend}"
        )
    return kind


def _primary(location: Any, alias: str, kind: str) -> str:
    """Return the address of the server for writes, which both cache backends list first."""
    several = ",;" if kind == DJANGO else ","
    servers = re.split(f"[{several}]", location) if isinstance(location, str) else list(location or [])
    if not servers or not servers[0]:
        raise UnusableCacheError(f"cache {alias!r} has no LOCATION")
    return str(servers[0]).strip()


def _build_server_options(alias: str, location: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's options. An option in the URL takes precedence, as in redis-py."""
    parts = urlsplit(location)
    _refuse(alias, dict(parse_qsl(parts.query)))
    query = [(name, value) for name, value in parse_qsl(parts.query) if name in urls.ACCESS_OPTIONS]
    base = location.partition("?")[0]
    from_url = urls.split_url(location)[1]
    taken = {name: value for name, value in _copy_access_options(alias, options).items() if name not in from_url}
    return {**taken, "url": f"{base}?{urlencode(query)}" if query else base}


def _copy_access_options(alias: str, options: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(alias, options)
    names = (*urls.ACCESS_OPTIONS, "credential_provider")
    taken = {name: options[name] for name in names if options.get(name) is not None}
    verify = options.get("ssl_cert_reqs", "")
    if verify is None or isinstance(
        verify, ssl.VerifyMode
    ):  # redis-py also accepts Python's constants, and None for no verification
        taken["ssl_cert_reqs"] = verify.name.removeprefix("CERT_").lower() if verify is not None else "none"
    return taken


def _refuse(alias: str, options: Mapping[str, Any]) -> None:
    """Raise an error for cache options that can't be copied, but that may be necessary for the connection or its
    safety.
    """
    for name in options:
        if _NOT_TAKEN.fullmatch(name) and name not in urls.ACCESS_OPTIONS:
            hint = "; for a cluster set CLUSTER to True together with CACHE" if name in _CLASSES else ""
            raise UnusableCacheError(
                f"cache {alias!r} has the option {name}, which can't be taken over; configure REDIS itself{hint}"
            )


def _sentinel(alias: str, location: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Read the sentinel options of django-redis: the URL's host is the name of the service, and the sentinels are in
    the options.
    """
    found = urls.split_url(location)[1]
    secure = str(found.get("ssl", own.get("ssl", False))).lower() == "true"
    ask = options.get("SENTINEL_KWARGS") or {}
    if bool(ask.get("ssl", False)) != secure:
        raise UnusableCacheError(
            f"cache {alias!r} encrypts the connection either to the sentinels or to their primary; expected both or neither "
            "(ssl in SENTINEL_KWARGS and in CONNECTION_POOL_KWARGS)"
        )
    sentinel = {name: ask[name] for name in ("username", "password") if ask.get(name)}
    sentinel |= {"service": urlsplit(location).hostname or "", "nodes": options["SENTINELS"]}
    from_url = {name: found[name] for name in urls.ACCESS_OPTIONS if name in found}
    return {**_copy_access_options(alias, own), **from_url, "ssl": secure, "sentinel": sentinel}
