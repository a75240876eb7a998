"""Checks of the server: whether it can be reached, whether it keeps tasks, and whether a cache shares its database.

`check_server` is part of ``check --deploy`` and the only check that needs the network. A separate thread sends the
requests. After `DEADLINE` the check continues without the thread, even if the server or the name service hangs.
`check_caches` only compares settings. A cache in the queues' database is dangerous, because ``cache.clear()`` runs
FLUSHDB, in Django's backend and in django-redis.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings

from django_fairque.checks.configuration import load_config, message, resolve_alias
from django_fairque.conf.sources import NO_SERVER_URL
from django_fairque.engine.model import errors

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from django_fairque.conf import FairQueueConfig, RedisConfig

    Infos = Mapping[str, Mapping[str, Any]]
    """The replies to ``INFO`` by the node's name. A single server has an empty name."""

T = TypeVar("T")
DEADLINE = 2.5
"""Maximum seconds for all requests together."""
TIMEOUT = 1.0
"""Maximum seconds for one connection, and for one answer."""

_REFUSES = ("fairque.E015", "Nothing can be enqueued until this is fixed.")
_KEEPS = ("fairque.W004", "Set appendonly yes (and appendfsync everysec), on a disk with room.")
_ELASTICACHE = (
    "If durability is switched on for this ElastiCache, set DURABILITY in REDIS to managed-log (synchronous writes) or "
    "managed-log-async (asynchronous writes). Otherwise use the outbox for what must not be lost."
)
_OLD = "Redis 7.2.5 and Valkey 7.2.6 are the oldest that are fit for production."

# The number and the hint for each kind of finding. Findings that change from hour to hour are left to fairque_health.
_NUMBERS = {
    "replica": _REFUSES,
    "disk": _REFUSES,
    "persistence": _KEEPS,
    "snapshot": _KEEPS,
    "eviction": ("fairque.E013", "Set maxmemory-policy noeviction: any other throws tasks away when memory is short."),
    "unsupported": ("fairque.E014", _OLD),
    "version": ("fairque.W005", _OLD),
    "unlimited": (
        "fairque.W051",
        "Set maxmemory below what the machine has: a full server refuses tasks and keeps the others.",
    ),
    "hole": ("fairque.W010", "Upgrade within its line; until then let nobody connect who may not run code there."),
}


def check_server(**_: Any) -> list[CheckMessage]:
    """Check whether the server can be reached, accepts tasks, and keeps them. The embedded server is not checked, and
    in a test run no server is checked. Returns the messages.
    """
    config = load_config()
    if config is None or config.redis.url == NO_SERVER_URL or (mine := resolve_alias(config.redis)).is_embedded:
        return []
    until = time.monotonic() + DEADLINE
    try:
        infos = _infos(mine, until)
    except errors.ConfigurationError:  # `check_configuration` reports the error of the credential provider
        return []
    except (errors.ServerRefusedError, errors.LuaScriptError) as refused:
        return [message(_REFUSES[0], f"{mine.address} refuses the queues: {refused}", _REFUSES[1])]
    except errors.RedisConnectionError as failed:
        hint = "It could not be checked; check again from where it can be reached."
        return [message("fairque.W006", f"{mine.address} was not checked: {failed}", hint)]
    caches = _hidden_caches(config.redis.cache, mine, infos, until)
    return [*_findings(mine, infos), *caches, *_missing_keys(config, mine, until), *_unserved(config, mine, until)]


def _missing_keys(config: FairQueueConfig, mine: RedisConfig, until: float) -> Iterator[CheckMessage]:
    """Return messages about keys with which producers of a queue have signed tasks, and which this project's settings
    lack.
    """
    from django_fairque.engine.model.signature import fingerprint
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.queue.used_keys import used_keys
    from django_fairque.tasks.signing import project_keys

    def read(client: Any) -> dict[str, set[str]]:
        return {name: used_keys(FairQueue(client, name, config.queue_config(name))) for name in config.queues}

    if config.signing == "off":
        return
    try:
        used = _ask_in_time(mine, until, read)
    except errors.FairQueueError:  # other checks, and the queue itself, report this error
        return
    own = set(map(fingerprint, project_keys()))
    for name, keys in used.items():
        if keys - own:
            yield message(
                "fairque.W055",
                f"producers of queue {name!r} have signed with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS: "
                f"fingerprint {', '.join(sorted(keys - own))}",
                "Workers with these settings give such tasks back. Use the SECRET_KEY of the producers, or put their key into "
                "SECRET_KEY_FALLBACKS. If no producer uses it any more, run manage.py fairque_keys replace.",
            )


def _unserved(config: FairQueueConfig, mine: RedisConfig, until: float) -> Iterator[CheckMessage]:
    """Return messages about declared queues that no worker serves, if workers serve other queues."""
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.queue.served import describe_unserved, find_unserved

    def read(client: Any) -> list[str]:
        return find_unserved(FairQueue(client, name, config.queue_config(name)) for name in config.queues)

    try:
        unserved = _ask_in_time(mine, until, read)
    except errors.FairQueueError:  # other checks, and the queue itself, report this error
        return
    for name in unserved:
        hint = "Name the queue with --queue or in QUEUES of WORKER, or remove it from QUEUES if nothing is sent to it."
        yield message("fairque.W056", describe_unserved(name), hint)


def _findings(redis: RedisConfig, infos: Infos) -> Iterator[CheckMessage]:
    from django_fairque.engine.transport.server_checks import check_server_info
    from django_fairque.monitoring.health import durable_log, is_elasticache

    where: dict[tuple[str, str], list[str]] = {}
    for node, info in infos.items():
        for finding in (*check_server_info(info), *_check_maxmemory(info)):
            where.setdefault(finding, []).append(node)
    has_log = durable_log(redis) is not None
    for (kind, text), nodes in where.items():
        if kind in _NUMBERS and not (kind == "persistence" and has_log):
            number, hint = _NUMBERS[kind]
            if kind == "persistence" and any(map(is_elasticache, redis.hosts)):
                hint = _ELASTICACHE
            more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            of_cluster = f" (node {nodes[0]}{more})" if nodes[0] else ""  # a single server has no name
            yield message(number, f"{redis.address}{of_cluster}: {text}", hint)


def _check_maxmemory(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return a warning about a server without maxmemory. `fairque_health` does not report this, because it is not a
    problem yet and may be intended on a developer's machine.
    """
    if info.get("maxmemory") == 0:
        yield "unlimited", "there is no maxmemory: a queue that grows ends when the kernel kills the server"


def _hidden_caches(queue_alias: str | None, mine: RedisConfig, infos: Infos, until: float) -> Iterator[CheckMessage]:
    """Return messages about caches on the queues' server that can't be found by comparing settings: caches in the same
    database, if the settings use another name for the server, and caches in other databases.
    """
    mine_run = _runs(infos)
    for alias, cache in redis_caches(queue_alias):
        if shares_database(mine, cache):
            continue  # `check_caches` reports the mistake
        try:
            runs = _runs(_infos(cache, until))
        except errors.FairQueueError:  # a cache that is down or refuses access is not a mistake for this check
            continue
        if runs & mine_run and cache.db == mine.db:
            yield warn(cache, alias)
        elif runs & mine_run:
            yield message(
                "fairque.W053",
                f"the cache {alias!r} is on the queues' server, in its database {cache.db}: both fill the same memory, and "
                "tasks are refused when it is full",
                "Use another server for the cache: this one evicts nothing (noeviction). Silence this number if all entries "
                "expire soon and maxmemory has room for them.",
            )


def _runs(infos: Infos) -> set[object]:
    """Return the run ids of the server processes, which identify them."""
    return {info["run_id"] for info in infos.values() if info.get("run_id")}


def _infos(redis: RedisConfig, until: float) -> Infos:
    """Return the reply to ``INFO`` of a server. Raise `FairQueueError` if it does not arrive in time."""
    from django_fairque.monitoring.server_probe import read_server_info

    return _ask_in_time(redis, until, read_server_info)


def _ask_in_time(redis: RedisConfig, until: float, read: Callable[[Any], T]) -> T:
    """Return the result of ``read``, which is called with a client of the server. Raise `FairQueueError` if there is no
    result in time.
    """
    answers: SimpleQueue[T | Exception] = SimpleQueue()
    threading.Thread(target=_ask, args=(redis, answers, read), name="fairque-check", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, until - time.monotonic()))
    except Empty:
        raise errors.RedisConnectionError(f"it gave no answer within {DEADLINE:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _ask(redis: RedisConfig, answers: SimpleQueue[T | Exception], read: Callable[[Any], T]) -> None:
    from django_fairque.conf.redis import close_client

    quick = redis.model_copy(update={"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT})
    try:
        client = quick.create_redis_client()
        try:
            answers.put(read(client))
        finally:
            close_client(client)
    except Exception as failed:  # noqa: BLE001 - raised again by the one who asks
        answers.put(failed)


_CACHE_SESSIONS = ("django.contrib.sessions.backends.cache", "django.contrib.sessions.backends.cached_db")
_CACHE_MIDDLEWARE = {
    "django.middleware.cache.UpdateCacheMiddleware",
    "django.middleware.cache.FetchFromCacheMiddleware",
}


def check_caches(**_: Any) -> list[CheckMessage]:
    """Check for caches that are in the queues' database according to their settings. Returns the messages."""
    config = load_config()
    if config is None:
        return []
    mine = resolve_alias(config.redis)
    return [warn(cache, alias) for alias, cache in redis_caches(config.redis.cache) if shares_database(mine, cache)]


def shares_database(mine: RedisConfig, cache: RedisConfig) -> bool:
    """Return whether a cache is in a database of the queues, according to its settings."""
    return any(cache.database == server.database for server in mine.servers)


def warn(cache: RedisConfig, alias: str) -> CheckMessage:
    return message(
        "fairque.W002",
        f"the queues share the database {cache.database} with the cache {alias!r}",
        "cache.clear() empties the whole database, tasks included: use another database or server.",
    )


def redis_caches(queue_alias: str | None) -> Iterator[tuple[str, RedisConfig]]:
    """Yield each cache that is on a Redis server. A cache alias that only the queues use is left out."""
    from django_fairque.conf import RedisConfig
    from django_fairque.conf.redis import resolve_cache

    for alias in settings.CACHES:
        if alias == queue_alias and alias not in _used_as_caches():
            continue
        try:
            yield alias, resolve_cache(RedisConfig(cache=alias))
        except errors.ConfigurationError:  # the cache is not stored in Redis
            continue


def _used_as_caches() -> set[str]:
    """Return the aliases of caches in which Django itself stores values."""
    used = {"default", "template_fragments"}
    if settings.SESSION_ENGINE in _CACHE_SESSIONS:
        used.add(settings.SESSION_CACHE_ALIAS)
    if _CACHE_MIDDLEWARE & set(settings.MIDDLEWARE):
        used.add(settings.CACHE_MIDDLEWARE_ALIAS)
    return used
