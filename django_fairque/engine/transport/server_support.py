"""What is known of kinds and versions of servers, without asking one: who can't work, and who has known holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import UnsupportedServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Version = tuple[int, ...]

MINIMUM: Version = (7, 2)

FIXES: Mapping[str, Mapping[str, tuple[Version, ...]]] = {
    "CVE-2025-49844": {
        "Redis": ((7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
        "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
    },
    "CVE-2026-23479": {
        "Redis": ((7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)),
        "Valkey": ((7, 2, 13), (8, 0, 9), (8, 1, 7), (9, 0, 4)),
    },
}
"""Holes by which whoever may connect can run code of their own on the server's machine, and in each line the first version
without. Lines that are not named and later than the last are without it; of earlier ones nothing is known here."""


def name_and_version(info: Mapping[str, Any]) -> tuple[str, str]:
    """``("Valkey", "9.0.1")``. Valkey calls itself Redis 7.2.4 as well."""
    if "valkey_version" in info:
        return "Valkey", str(info["valkey_version"])
    return "Redis", str(info.get("redis_version") or "0")


def numbers(version: str) -> Version:
    """``(9, 0, 1)`` of ``9.0.1-rc2``."""
    return tuple(int(part) for part in version.partition("-")[0].split(".")[:3] if part.isdigit())


def stranger(info: Mapping[str, Any]) -> str:
    """Of a server that only speaks like Redis, why it can't have queues; of any other an empty string."""
    if "dragonfly_version" in info:
        return (
            f"Dragonfly ({info['dragonfly_version']}) is not supported: it runs scripts beside each other, and refuses keys "
            "that are not declared; use Redis 7.2.5, Valkey 7.2.6 or newer"
        )
    if "keydb" in str(info.get("executable", "")).lower():
        return f"KeyDB ({info.get('redis_version')}) has no functions; use Redis 7.2.5, Valkey 7.2.6 or newer"
    return ""


def holes(name: str, version: str) -> Iterator[tuple[str, str]]:
    """Each known hole of this version: its number, and the first version of its line without it."""
    own = numbers(version)
    for hole, fixed in FIXES.items():
        for first in fixed.get(name, ()):
            if own[:2] == first[:2] and own < first:
                yield hole, ".".join(map(str, first))


def mode(info: Mapping[str, Any]) -> str:
    """``standalone``, ``cluster``, or ``sentinel``."""
    return str(info.get("server_mode") or info.get("redis_mode") or "standalone")


def check_server(info: Mapping[str, Any]) -> None:
    """Raise `UnsupportedServerError` unless ``INFO`` describes a server that keeps tasks safe."""
    if who := stranger(info):
        raise UnsupportedServerError(who)
    name, version = name_and_version(info)
    if numbers(version) < MINIMUM:
        raise UnsupportedServerError(f"{name} 7.2 or newer is needed, this server is {name} {version}; upgrade it")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys") and int(info.get("maxmemory", 0)) > 0:
        raise UnsupportedServerError(
            f"the server throws tasks away when memory is short (maxmemory-policy {policy}); "
            f"it must be noeviction, or the queue needs a server of its own"
        )
