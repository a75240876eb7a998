"""Counting what a server does: counts don't drift, so they may fail a build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

OUTSIDE = {
    "fcall",
    "function|load",
    "evalsha",
    "eval",
    "info",
    "config|resetstat",
    "script|load",
    "client|setinfo",
    "hello",
}
"""Commands that clients send; all others run inside scripts."""


def counted(redis: Redis, call: Callable[[], Any]) -> dict[str, dict[str, Any]]:
    """Return the server's statistics of each command that ran during ``call``."""
    redis.config_resetstat()
    call()
    return {name.removeprefix("cmdstat_"): stat for name, stat in redis.info("commandstats").items()}


def commands(redis: Redis, call: Callable[[], Any]) -> int:
    """Server commands run inside the scripts of ``call``."""
    return sum(stat["calls"] for name, stat in counted(redis, call).items() if name not in OUTSIDE)
