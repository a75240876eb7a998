"""What production needs of the server and the way to it, by the settings alone; part of ``check --deploy``."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from django.conf import settings

from .messages import configured, error, resolved, warning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.core.checks import CheckMessage

    from django_fairque.conf import RedisConfig, WorkerConfig


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Check for connections without encryption, tasks without signatures, a server that is meant for development, and
    kept connections to databases. Returns the messages.
    """
    config = configured()
    if config is None:
        return []
    redis = resolved(config.redis)
    return [
        *_encryption(redis),
        *_signing(config.signing),
        *_embedded(redis),
        *_kept_connections((config.worker, *config.workers.values())),
    ]


def _encryption(redis: RedisConfig) -> Iterator[CheckMessage]:
    if all(_is_here(host) for host in redis.hosts):
        return
    if not redis.ssl:
        yield error(
            "fairque.E008",
            f"passwords and payloads travel unencrypted to {redis.address}",
            "Use a rediss:// URL, or SSL: True. Silence this number if the network itself is encrypted.",
        )
    elif redis.ssl_cert_reqs == "none" or not redis.ssl_check_hostname:
        yield error(
            "fairque.E009",
            f"anybody can pose as {redis.address}: its certificate or its name is not verified",
            'Set SSL_CERT_REQS to "required" and SSL_CHECK_HOSTNAME to True, with the authority in SSL_CA_CERTS.',
        )


def _signing(mode: str) -> Iterator[CheckMessage]:
    if mode != "on":
        yield warning(
            "fairque.W050",
            f"SIGNING is {mode}: anybody who can write to the server can make workers run any task",
            "Leave it out when nothing waits that has no signature: on is the default.",
        )


def _embedded(redis: RedisConfig) -> Iterator[CheckMessage]:
    if redis.is_embedded and not settings.DEBUG:
        yield warning(
            "fairque.W009",
            f"the queues are on the embedded server ({redis.address}), which one user on one machine can reach",
            "Name a server of its own in REDIS. Silence this number where one machine is all there is.",
        )


def _kept_connections(workers: Sequence[WorkerConfig]) -> Iterator[CheckMessage]:
    """Session variables pass from task to task in a connection that is kept. SQLite has hardly any that matter."""
    if all(each.close_database_connections for each in workers):
        return
    databases: dict[str, dict[str, Any]] = settings.DATABASES
    for alias, database in databases.items():
        keeps = database.get("CONN_MAX_AGE", 0) != 0 or database.get("OPTIONS", {}).get("pool")
        if keeps and not database.get("ENGINE", "").endswith("sqlite3"):
            yield warning(
                "fairque.W011",
                f"tasks of different users share connections to the database {alias!r}, and with them session variables "
                "(SET, SET ROLE) that a task does not reset: CONN_MAX_AGE or a pool keeps connections",
                "Set CLOSE_DATABASE_CONNECTIONS to true in WORKER. Silence this number if no task changes its session.",
            )


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
