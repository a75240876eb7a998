"""A database that the queues share with a cache: ``cache.clear()`` is FLUSHDB, in Django's backend and in django-redis'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings

from .messages import configured, resolved, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

    from django_fairque.conf import RedisConfig

_CACHE_SESSIONS = ("django.contrib.sessions.backends.cache", "django.contrib.sessions.backends.cached_db")
_CACHE_MIDDLEWARE = {
    "django.middleware.cache.UpdateCacheMiddleware",
    "django.middleware.cache.FetchFromCacheMiddleware",
}


def check_caches(**_: Any) -> list[CheckMessage]:
    """Caches that are, by their settings, in the queues' database."""
    config = configured()
    if config is None:
        return []
    mine = resolved(config.redis)
    return [shared(mine, alias) for alias, cache in redis_caches(config.redis.cache) if cache.database == mine.database]


def shared(mine: RedisConfig, alias: str) -> CheckMessage:
    return warning(
        "fairque.W002",
        f"the queues share the database {mine.database} with the cache {alias!r}",
        "cache.clear() empties the whole database, tasks included: use another database or server.",
    )


def redis_caches(queue_alias: str | None) -> Iterator[tuple[str, RedisConfig]]:
    """Each cache that is on a server, but for the alias that was made for the queues and is used for nothing else."""
    from django_fairque.conf import RedisConfig
    from django_fairque.conf.sources import resolve_cache
    from django_fairque.engine.model.errors import ConfigurationError

    for alias in settings.CACHES:
        if alias == queue_alias and alias not in _used_as_caches():
            continue
        try:
            yield alias, resolve_cache(RedisConfig(cache=alias))
        except ConfigurationError:  # not on Redis
            continue


def _used_as_caches() -> set[str]:
    """The aliases that Django itself stores something in."""
    used = {"default", "template_fragments"}
    if settings.SESSION_ENGINE in _CACHE_SESSIONS:
        used.add(settings.SESSION_CACHE_ALIAS)
    if _CACHE_MIDDLEWARE & set(settings.MIDDLEWARE):
        used.add(settings.CACHE_MIDDLEWARE_ALIAS)
    return used
