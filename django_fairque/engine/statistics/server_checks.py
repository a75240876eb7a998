"""What a server says of itself, and what of that endangers tasks: for health, and for the system checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from django_fairque.engine.transport.cluster import is_cluster
from django_fairque.engine.transport.retry_policy import FAILURES, explained
from django_fairque.engine.transport.server_support import MINIMUM, holes, mode, name_and_version, numbers, stranger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Kind = Literal[
    "replica", "disk", "persistence", "snapshot", "eviction", "unsupported", "version", "hole", "memory", "full"
]

REFUSALS: tuple[Kind, ...] = ("replica", "disk", "unsupported", "full")
"""With these nothing can be written, or nothing is sent."""

LOSES = "the append-only file is off: a restart of the server loses what came since its last snapshot"

SECTIONS = ("server", "memory", "persistence", "replication")
"""Of INFO: all that `findings` looks at."""

_WITH_FLOATS = {"Redis": (7, 2, 5), "Valkey": (7, 2, 6)}
"""The first versions whose scripts write large integers as integers."""


def server_infos(client: Any) -> dict[str, Mapping[str, Any]]:
    """What a client's server says now, under an empty name; of a cluster, what each of its primaries says. It is asked once.

    Raises:
        RedisConnectionError: it can't be reached.
        FairQueueError: it answers with an error.
    """
    to_whom = {"target_nodes": "primaries"} if is_cluster(client) else {}
    try:
        reply = client.execute_command("INFO", *SECTIONS, **to_whom)
    except FAILURES as error:
        raise explained(error) from error
    return {"": reply} if "redis_version" in reply else reply  # as it is also for the only primary of a cluster


def findings(info: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    """Each danger, as a sentence."""
    yield from _refusals(info)
    yield from _losses(info)
    yield from _age(info)
    yield from _memory(info)


def _refusals(info: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    # A cluster's client asks any node of it, and sends what it writes to the right one.
    if info.get("role") == "slave" and mode(info) != "cluster":
        yield "replica", "the server is a read-only replica; connect to the primary"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield "disk", "the server could not write its append-only file and refuses changes; look at its disk"


def _losses(info: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    if not info.get("aof_enabled"):
        yield "persistence", LOSES
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        text = "the server could not write its last snapshot, and may refuse changes until it can; look at its disk"
        yield "snapshot", text
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield "eviction", f"maxmemory-policy is {policy}; it should be noeviction"


def _memory(info: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    # Buffers for replicas and for the append-only file are in `used_memory`, and the server refuses nothing for them.
    counted = used - int(info.get("mem_not_counted_for_evict") or 0)
    if limit and counted >= limit:
        part = 100 * counted // limit
        yield "full", f"memory is full ({part} % of maxmemory): new tasks are refused, what waits drains"
    elif limit and used > 0.9 * limit:
        yield "memory", f"memory is {100 * used // limit} % full; new tasks will be refused when it is full"


def _age(info: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    name, version = name_and_version(info)
    if who := stranger(info):
        yield "unsupported", who
        return
    if numbers(version) < MINIMUM:
        yield "unsupported", f"{name} {version} is too old; upgrade to 7.2 or newer"
    elif numbers(version) < _WITH_FLOATS[name]:
        newer = ".".join(map(str, _WITH_FLOATS[name]))
        yield "version", f"{name} {version} writes some integers as 3e+8 inside scripts; upgrade to {newer} or newer"
    if found := dict(holes(name, version)):
        newer = max(found.values(), key=numbers)
        yield "hole", f"{name} {version} has holes that are known ({', '.join(found)}); upgrade to {newer} or newer"
