"""System checks of the configuration, numbered; docs/configuration.md lists them. None of them needs the network."""

from __future__ import annotations

import ipaddress
import os
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks, mail
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.conf import FairQueueConfig, RedisConfig
    from django_fairque.engine.options import Mistake

TAG = "fairque"

# Kind of mistake -> number and what to do about it.
_MISTAKES = {
    "unknown": ("fairque.E001", "docs/configuration.md lists every key. Case does not matter."),
    "value": ("fairque.E002", "docs/configuration.md says what each key takes."),
    "conflict": ("fairque.E003", "Change one of the keys that contradict each other."),
    "file": (
        "fairque.E004",
        "CONFIG_FILE names a YAML file with the sections redis, worker, workers, queue, queues, schedules, monitor.",
    ),
    "server": ("fairque.E005", "Name the server in settings, in the file, or as FAIRQUE_REDIS__URL."),
    "cache": ("fairque.E006", "Name the server itself (URL, or HOST and PORT) instead of a cache."),
}


def register() -> None:
    checks.register(check_configuration, TAG)
    checks.register(check_deployment, TAG, deploy=True)


def check_configuration(**_: Any) -> list[checks.CheckMessage]:
    """Every mistake in the configuration, and what is allowed but hardly meant."""
    from django_fairque.conf import get_config
    from django_fairque.engine.options import InvalidOptionsError

    try:
        config = get_config()
    except InvalidOptionsError as error:
        return [_error(mistake) for mistake in error.mistakes if not _is_fine_in_tests(mistake)]
    return [
        *_handlers(config),
        *_schedules(config),
        *_overlooked_variables(),
        *_shared_databases(config),
        *_short_leases(config),
    ]


def _error(mistake: Mistake) -> checks.Error:
    number, hint = _MISTAKES[mistake.kind]
    return checks.Error(str(mistake), hint=hint, id=number)


def _is_fine_in_tests(mistake: Mistake) -> bool:
    # A test run sets DEBUG to False, and with it a project loses the server it develops on. Most tests never need
    # one; those that do get the error from get_queue(). Django's documented sign of a test run is the outbox.
    return mistake.kind == "server" and hasattr(mail, "outbox")


def _handlers(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    for path in sorted({worker.handler for worker in (config.worker, *config.workers.values()) if worker.handler}):
        try:
            problem = "" if callable(import_string(path)) else "it is not callable"
        except ImportError as error:
            problem = str(error)
        if problem:
            yield checks.Error(
                f"the worker's handler {path!r} can't be used: {problem}",
                hint="HANDLER is the dotted path of a callable.",
                id="fairque.E007",
            )


def _schedules(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    from django_fairque.tasks.schedules import mistakes_in

    for name, problem in mistakes_in(config.schedules):
        yield checks.Error(
            f"the schedule {name!r} can't be used: {problem}",
            hint="SCHEDULES names registered tasks, with arguments that fit them.",
            id="fairque.E010",
        )


def _overlooked_variables() -> Iterator[checks.CheckMessage]:
    from django_fairque.conf.environment import overlooked

    for name, meant in overlooked(os.environ):
        yield checks.Warning(
            f"the environment variable {name} is not read",
            hint=f"Two underscores part the levels: did you mean {meant}?",
            id="fairque.W001",
        )


def _shared_databases(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    from django_fairque.conf import RedisConfig
    from django_fairque.conf.sources import resolve_cache
    from django_fairque.engine.errors import ConfigurationError

    mine = _resolved(config.redis)
    for alias in settings.CACHES:
        if alias == config.redis.cache and alias != "default":
            continue  # an alias made for the queue
        try:
            cache = resolve_cache(RedisConfig(cache=alias))
        except ConfigurationError:  # not on Redis
            continue
        if cache.database == mine.database:
            yield checks.Warning(
                f"the queues share the database {mine.database} with the cache {alias!r}",
                hint="cache.clear() empties the whole database, tasks included: use another database or server.",
                id="fairque.W002",
            )


def _short_leases(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    shortest = min(worker.lease_seconds for worker in (config.worker, *config.workers.values()))
    if shortest <= config.redis.socket_timeout:
        yield checks.Warning(
            f"a worker's lease_seconds ({shortest:g}) is not longer than redis.socket_timeout "
            f"({config.redis.socket_timeout:g})",
            hint="While one renewal waits for an answer, all leases end, and other workers repeat the tasks.",
            id="fairque.W003",
        )


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """What a server on another machine must have in production; part of ``check --deploy``."""
    from django_fairque.conf import get_config
    from django_fairque.engine.options import InvalidOptionsError

    try:
        redis = _resolved(get_config().redis)
    except InvalidOptionsError:
        return []  # reported by check_configuration
    return [*_encryption(redis)]


def _encryption(redis: RedisConfig) -> Iterator[checks.CheckMessage]:
    if all(_is_here(host) for host in redis.hosts):
        return
    if not redis.ssl:
        yield checks.Error(
            f"passwords and payloads travel unencrypted to {redis.address}",
            hint="Use a rediss:// URL, or SSL: True. Silence this number if the network itself is encrypted.",
            id="fairque.E008",
        )
    elif redis.ssl_cert_reqs == "none" or not redis.ssl_check_hostname:
        yield checks.Error(
            f"anybody can pose as {redis.address}: its certificate or its name is not verified",
            hint='Set SSL_CERT_REQS to "required" and SSL_CHECK_HOSTNAME to True, with the authority in SSL_CA_CERTS.',
            id="fairque.E009",
        )


def _resolved(redis: RedisConfig) -> RedisConfig:
    from django_fairque.conf.sources import resolve_cache

    return resolve_cache(redis) if redis.cache else redis


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
