"""A server's information about itself (``INFO``), and the dangers for tasks that it shows. Used by health and by the
system checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from django_fairque.engine.model.errors import UnsupportedServerError

Version = tuple[int, ...]

MINIMUM_VERSION: Version = (7, 2)

VULNERABILITY_FIXES: Mapping[str, Mapping[str, tuple[Version, ...]]] = {
    "CVE-2025-49844": {
        "Redis": ((7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
        "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
    },
    "CVE-2026-23479": {
        "Redis": ((7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)),
        "Valkey": ((7, 2, 13), (8, 0, 9), (8, 1, 7), (9, 0, 4)),
    },
}
"""Vulnerabilities that let a connected client run code on the server's machine, and the first fixed version of each
release line. Release lines after the last one named here are not affected; nothing is known about earlier release
lines."""


def name_and_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the version of a server, such as ``("Valkey", "9.0.1")``. Valkey also calls itself Redis
    7.2.4.
    """
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info.get("redis_version") or "0")


def version_numbers(version: str) -> Version:
    """Return the numbers of a version: ``(9, 0, 1)`` for ``9.0.1-rc2``."""
    return tuple(int(part) for part in version.partition("-")[0].split(".")[:3] if part.isdigit())


def unsupported_reason(info: Mapping[str, Any]) -> str:
    """Return the reason why queues can't use a server that supports only Redis's protocol; an empty string for any
    other server.
    """
    if "dragonfly_version" in info:
        return (
            f"Dragonfly ({info['dragonfly_version']}) is not supported: it runs scripts at the same time, and refuses keys "
            "that are not declared; use Redis 7.2.5, Valkey 7.2.6 or newer"
        )
    if "keydb" in str(info.get("executable", "")).lower():
        return f"KeyDB ({info.get('redis_version')}) has no functions; use Redis 7.2.5, Valkey 7.2.6 or newer"
    return ""


def find_vulnerabilities(name: str, version: str) -> Iterator[tuple[str, str]]:
    """Yield each known vulnerability of this version: its number, and the first version of its release line without it."""
    own = version_numbers(version)
    for hole, fixed in VULNERABILITY_FIXES.items():
        for first in fixed.get(name, ()):
            if own[:2] == first[:2] and own < first:
                yield hole, ".".join(map(str, first))


def server_mode(info: Mapping[str, Any]) -> str:
    """Return the mode of a server: ``standalone``, ``cluster``, or ``sentinel``."""
    return str(info.get("server_mode") or info.get("redis_mode") or "standalone")


def check_server(info: Mapping[str, Any]) -> None:
    """Raise `UnsupportedServerError` unless ``INFO`` describes a server that keeps tasks safe."""
    if who := unsupported_reason(info):
        raise UnsupportedServerError(who)
    name, version = name_and_version(info)
    if version_numbers(version) < MINIMUM_VERSION:
        raise UnsupportedServerError(f"{name} 7.2 or newer is needed, this server is {name} {version}; upgrade it")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys") and int(info.get("maxmemory", 0)) > 0:
        raise UnsupportedServerError(
            f"the server throws tasks away when memory is short (maxmemory-policy {policy}); "
            f"it must be noeviction, or the queue needs a separate server"
        )


FindingKind = Literal[
    "replica", "disk", "persistence", "snapshot", "eviction", "unsupported", "version", "hole", "memory", "full"
]

BLOCKING_FINDINGS: tuple[FindingKind, ...] = ("replica", "disk", "unsupported", "full")
"""Findings that prevent all writes, or all requests."""

APPEND_ONLY_FILE_IS_OFF = "the append-only file is off: a restart of the server loses what came since its last snapshot"

CHECKED_INFO_SECTIONS = ("server", "memory", "persistence", "replication")
"""The sections of INFO that `check_server_info` uses."""

_EXACT_INTEGERS_SINCE = {"Redis": (7, 2, 5), "Valkey": (7, 2, 6)}
"""The first versions whose scripts write large integers as integers."""


def check_server_info(info: Mapping[str, Any]) -> Iterator[tuple[FindingKind, str]]:
    """Yield the kind of each danger, and a sentence about it."""
    # A cluster's client reads INFO of any node, and sends writes to the right node.
    if info.get("role") == "slave" and server_mode(info) != "cluster":
        yield "replica", "the server is a read-only replica; connect to the primary"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield "disk", "the server could not write its append-only file and refuses changes; look at its disk"
    yield from _check_persistence(info)
    yield from _check_version(info)
    yield from _check_memory(info)


def _check_persistence(info: Mapping[str, Any]) -> Iterator[tuple[FindingKind, str]]:
    if not info.get("aof_enabled"):
        yield "persistence", APPEND_ONLY_FILE_IS_OFF
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the server could not write its last snapshot, and may refuse changes until it can; look at its disk"
        yield "snapshot", text
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield "eviction", f"maxmemory-policy is {policy}; it should be noeviction"


def _check_memory(info: Mapping[str, Any]) -> Iterator[tuple[FindingKind, str]]:
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    # Buffers for replicas and for the append-only file are in `used_memory`, and the server refuses nothing for them.
    counted = used - int(info.get("mem_not_counted_for_evict") or 0)
    if limit and counted >= limit:
        part = 100 * counted // limit
        yield "full", f"memory is full ({part} % of maxmemory): new tasks are refused, what waits drains"
    elif limit and used > 0.9 * limit:
        yield "memory", f"memory is {100 * used // limit} % full; new tasks will be refused when it is full"


def _check_version(info: Mapping[str, Any]) -> Iterator[tuple[FindingKind, str]]:
    name, version = name_and_version(info)
    if who := unsupported_reason(info):
        yield "unsupported", who
        return
    if version_numbers(version) < MINIMUM_VERSION:
        yield "unsupported", f"{name} {version} is too old; upgrade to 7.2 or newer"
    elif version_numbers(version) < _EXACT_INTEGERS_SINCE[name]:
        newer = ".".join(map(str, _EXACT_INTEGERS_SINCE[name]))
        yield "version", f"{name} {version} writes some integers as 3e+8 inside scripts; upgrade to {newer} or newer"
    if found := dict(find_vulnerabilities(name, version)):
        newer = max(found.values(), key=version_numbers)
        yield "hole", f"{name} {version} has holes that are known ({', '.join(found)}); upgrade to {newer} or newer"
