"""Checks of settings: mistakes, valid but unlikely values, the users of requests, workers, and servers for production.

`check_deployment` is part of ``check --deploy`` and reads settings only; checks with requests to a server are in
`server`. The other modules of the package create messages and load the configuration with functions of this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.utils.module_loading import import_string
from pydantic import TypeAdapter

from django_fairque.documentation import get_explanation, page_address
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from django_fairque.conf import FairQueueConfig, RedisConfig, WorkerConfig
    from django_fairque.engine.model.options import Mistake


def message(number: str, text: str, hint: str, *, is_error: bool | None = None) -> checks.CheckMessage:
    """Return an error (E) or a warning (W). The letter of the number decides which, unless ``is_error`` is given. The
    hint ends with a reference to the documentation.
    """
    kind = checks.Error if (".E" in number if is_error is None else is_error) else checks.Warning
    return kind(text, hint=f"{hint} {get_explanation(number.rpartition('.')[2])}", id=number)


def load_config() -> FairQueueConfig | None:
    """Return the configuration; None if it has mistakes, because `check_configuration` reports these."""
    from django_fairque.conf import get_config

    try:
        return get_config()
    except ConfigurationError:
        return None


def resolve_alias(redis: RedisConfig) -> RedisConfig:
    """Return the configuration with a cache alias replaced by the cache's server. Without an alias, the configuration
    is unchanged.
    """
    from django_fairque.conf.redis import resolve_cache

    return resolve_cache(redis)


# The number and the hint for each kind of mistake. {page} stands for the documentation page of the configuration.
_MISTAKES = {
    "unknown": ("fairque.E001", "{page} lists every key. Case does not matter."),
    "value": ("fairque.E002", "{page} lists the values that each key takes."),
    "conflict": ("fairque.E003", "Change one of the keys that contradict each other."),
    "file": (
        "fairque.E004",
        "CONFIG_FILE names a YAML file with the sections redis, worker, workers, queue, queues, plans, schedules, monitor.",
    ),
    "server": ("fairque.E005", "Name the server in settings, in the file, or as FAIRQUE_REDIS__URL."),
    "cache": ("fairque.E006", "Name the server itself (URL, or HOST and PORT) instead of a cache."),
    "timing": (
        "fairque.E012",
        "CRON is minute, hour, day of month, month and day of week, and must come true some day.",
    ),
}


def check_configuration(**_: Any) -> list[checks.CheckMessage]:
    """Check the configuration. Returns a message for every mistake. If there are mistakes, the other checks return no
    messages.
    """
    from django_fairque.conf import get_config
    from django_fairque.engine.model.options import InvalidOptionsError

    try:
        config = get_config()
    except InvalidOptionsError as invalid:
        return [*_mistakes(invalid.mistakes), *_overlooked_variables()]
    return [*_overlooked_variables(), *_unused_values(), *_credentials(resolve_alias(config.redis))]


def _mistakes(mistakes: Sequence[Mistake]) -> Iterator[checks.CheckMessage]:
    for mistake in mistakes:
        number, hint = _MISTAKES[mistake.kind]
        yield message(number, str(mistake), hint.format(page=page_address("reference/settings")))


def _overlooked_variables() -> Iterator[checks.CheckMessage]:
    from django_fairque.conf.sources import find_misspelled_variables

    for name, meant in find_misspelled_variables(os.environ):
        hint = f"Did you mean {meant}? Two underscores part the levels."
        yield message("fairque.W001", f"the environment variable {name} is not read", hint)


def _unused_values() -> Iterator[checks.CheckMessage]:
    """Return a message for each sweep interval above the maximum. The maximum is used instead."""
    from django_fairque.conf.sources import merge_sources, read_sources
    from django_fairque.engine.model.options import MAX_SWEEP_INTERVAL_SECONDS, Number

    tree = merge_sources(read_sources())
    queues = {
        "QUEUE": tree.get("queue", {}),
        **{f"QUEUES.{name}": queue for name, queue in tree.get("queues", {}).items()},
    }
    for name, options in queues.items():
        seconds: float = TypeAdapter(Number).validate_python(options.get("sweep_interval", 0))
        if seconds > MAX_SWEEP_INTERVAL_SECONDS:
            text = f"{name}.SWEEP_INTERVAL is {seconds:g} seconds and is reduced to {MAX_SWEEP_INTERVAL_SECONDS:g}"
            hint = f"Set SWEEP_INTERVAL to at most {MAX_SWEEP_INTERVAL_SECONDS:g}, or leave it out."
            yield message("fairque.W015", text, hint)


def _credentials(redis: RedisConfig) -> Iterator[checks.CheckMessage]:
    from django_fairque.conf.redis import load_credentials

    if redis.credential_provider is None:
        return
    try:
        load_credentials(redis.credential_provider)
    except ConfigurationError as error:
        hint = "CREDENTIAL_PROVIDER is the dotted path of a credential provider of redis-py, or of what returns one."
        yield message("fairque.E018", str(error), hint)


def check_attribution(**_: Any) -> list[checks.CheckMessage]:
    """Check ``REQUEST_USER`` and the middleware that calls it, and ``PLAN_OF``. Returns the messages."""
    config = load_config()
    if config is None:
        return []
    return [*_request_user(config.request_user), *_middleware(config.request_user), *_plan_of(config)]


def _plan_of(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    if config.plan_of is None:
        return
    from django_fairque.conf.sections import import_plan_of

    try:
        import_plan_of(config.plan_of)
        if not config.plans:
            raise ConfigurationError(f"PLAN_OF: {config.plan_of!r} is never called, because PLANS has no plans")  # noqa: TRY301
    except ConfigurationError as mistake:
        hint = "It is called with a user's id and returns the name of a plan in PLANS, or None for no plan."
        yield message("fairque.E019", str(mistake), hint)


def _request_user(path: str | None) -> Iterator[checks.CheckMessage]:
    from django_fairque.middleware import own_callable

    try:
        if path:
            own_callable(path)
    except ConfigurationError as mistake:
        hint = "It is called with the request and returns a user's id, or None for nobody."
        yield message("fairque.E030", str(mistake), hint)


def _middleware(path: str | None) -> Iterator[checks.CheckMessage]:
    installed = {name for path in settings.MIDDLEWARE for name in _list_base_paths(path)}
    has_ours = "django_fairque.middleware.CurrentUserMiddleware" in installed
    if path and not has_ours:
        text = f"REQUEST_USER names {path!r}, and nobody calls it"
        hint = "Add django_fairque.middleware.CurrentUserMiddleware to MIDDLEWARE."
        yield message("fairque.W030", text, hint)
    elif has_ours and not path and "django.contrib.auth.middleware.AuthenticationMiddleware" not in installed:
        text = "CurrentUserMiddleware finds no user: no AuthenticationMiddleware sets request.user"
        hint = "Add it, or name a callable as REQUEST_USER. Silence this number if something else sets request.user."
        yield message("fairque.W031", text, hint)


def _list_base_paths(path: str) -> set[str]:
    """Return the dotted paths of a middleware and of its base classes."""
    try:
        bases = getattr(import_string(path), "__mro__", ())
    except ImportError:  # Django itself reports a middleware that can't be imported
        bases = ()
    return {path, *(f"{base.__module__}.{base.__qualname__}" for base in bases)}


def check_workers(**_: Any) -> list[checks.CheckMessage]:
    """Check for handlers that can't be called, leases that are too short for a worker, and queues that no worker
    serves. Returns the messages.
    """
    config = load_config()
    if config is None:
        return []
    workers = (config.worker, *config.workers.values())
    return [*_handlers(workers), *_short_leases(config, workers), *_check_unserved_queues(config)]


def _handlers(workers: tuple[WorkerConfig, ...]) -> Iterator[checks.CheckMessage]:
    for path in sorted({worker.handler for worker in workers if worker.handler}):
        try:
            problem = "" if callable(import_string(path)) else "it is not callable"
        except ImportError as failed:
            problem = str(failed)
        if problem:
            text = f"the worker's handler {path!r} can't be used: {problem}"
            yield message("fairque.E007", text, "HANDLER is the dotted path of a callable.")


def _short_leases(config: FairQueueConfig, workers: tuple[WorkerConfig, ...]) -> Iterator[checks.CheckMessage]:
    from django_fairque.worker.common.options import WorkerOptions

    patience = config.redis.socket_timeout
    shortest = min((WorkerOptions.from_config(worker) for worker in workers), key=lambda options: options.lease_seconds)
    if shortest.renewal_interval + patience >= shortest.fence_after:
        yield message(
            "fairque.W003",
            f"a worker with lease_seconds {shortest.lease_seconds:g} renews its leases every {shortest.renewal_interval:g} s and "
            f"may wait {patience:g} s for the answer (redis.socket_timeout): beyond "
            f"{shortest.fence_after:g} s it must stop working",
            "While one renewal waits for an answer, all leases end, and other workers repeat the tasks: make the lease longer "
            "than twice the time-out.",
        )


def _check_unserved_queues(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    """Return messages about queues that no worker serves. Only a project that lists its workers has declared that no
    other workers exist.
    """
    served = {name for worker in config.workers.values() for name in worker.queues}
    for name in config.queues if config.workers else ():
        if name not in served and name != "default":  # the default queue is always declared
            text = f"none of the WORKERS serves the queue {name!r}: its tasks would wait for ever"
            hint = "Name it among the QUEUES of a worker. Silence this number if a worker is started with --queue."
            yield message("fairque.W008", text, hint)


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """Check for connections without encryption, tasks without signatures, settings that are meant for development, and
    database connections that are kept open. Returns the messages.
    """
    config = load_config()
    if config is None:
        return []
    redis = resolve_alias(config.redis)
    return [
        *_encryption(redis),
        *_settings_of_development(config, redis),
        *_kept_connections(config),
        *_unnamed_version(config),
    ]


def _encryption(redis: RedisConfig) -> Iterator[checks.CheckMessage]:
    from django_fairque.conf.urls import is_loopback

    if all(map(is_loopback, redis.hosts)):
        return
    if not redis.ssl:
        text = f"passwords and payloads travel unencrypted to {redis.address}"
        hint = "Use a rediss:// URL, or SSL: True. Silence this number if the network itself is encrypted."
        yield message("fairque.E008", text, hint)
    elif redis.ssl_cert_reqs == "none" or not redis.ssl_check_hostname:
        text = f"anybody can pose as {redis.address}: its certificate or its name is not verified"
        hint = 'Set SSL_CERT_REQS to "required" and SSL_CHECK_HOSTNAME to True, with the authority in SSL_CA_CERTS.'
        yield message("fairque.E009", text, hint)


def _settings_of_development(config: FairQueueConfig, redis: RedisConfig) -> Iterator[checks.CheckMessage]:
    if config.signing != "on":
        text = f"SIGNING is {config.signing}: anybody who can write to the server can make workers run any task"
        hint = "Leave it out when nothing waits that has no signature: on is the default."
        yield message("fairque.W050", text, hint)
    if settings.DEBUG:
        text = (
            "DEBUG is true: workers keep the text of each query of a task until it ends, and error pages show the code"
        )
        yield message("fairque.W052", text, "Set DEBUG to False where the project is at work.")
    if redis.is_embedded and not settings.DEBUG:
        text = f"the queues are on the embedded server ({redis.address}), which one user on one machine can reach"
        hint = "Name a separate server in REDIS. Silence this number where one machine is all there is."
        yield message("fairque.W009", text, hint)


def _kept_connections(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    """Return a warning about database connections that are kept open, because they pass session variables from one task
    to the next. SQLite is left out, because it has hardly any important session variables.
    """
    if all(worker.close_database_connections for worker in (config.worker, *config.workers.values())):
        return
    databases: dict[str, dict[str, Any]] = settings.DATABASES
    for alias, database in databases.items():
        keeps = database.get("CONN_MAX_AGE", 0) != 0 or database.get("OPTIONS", {}).get("pool")
        if keeps and not database.get("ENGINE", "").endswith("sqlite3"):
            yield message(
                "fairque.W011",
                f"tasks of different users share connections to the database {alias!r}, and with them session variables "
                "(SET, SET ROLE) that a task does not reset: CONN_MAX_AGE or a pool keeps connections",
                "Set CLOSE_DATABASE_CONNECTIONS to true in WORKER. Silence this number if no task changes its session.",
            )


def _unnamed_version(config: FairQueueConfig) -> Iterator[checks.CheckMessage]:
    if config.schedules and not config.code_version:
        yield message(
            "fairque.W054",
            "SCHEDULES are declared and CODE_VERSION is not set: a deployment that declares what an older version did is not "
            "recognized as one while workers of other versions run",
            "Set CODE_VERSION, or the environment variable FAIRQUE_CODE_VERSION, to the commit or tag that is deployed.",
        )
