"""Whether the server keeps tasks safe and work is being done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .commands import NEVER, Commands
from .steps import Read, Steps
from .transport import INFO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Health:
    """``status`` is good, degraded or down, ``reasons`` say why in sentences, ``server`` what answers."""

    status: str
    reasons: list[str]
    server: dict[str, Any]


def health(commands: Commands) -> Steps[Health]:
    """Whether the server keeps tasks safe and work is being done; raises when the server can't be reached."""
    keys = commands.keys
    reads = [(*INFO, "persistence", "replication"), ("ZCARD", keys("workers")), ("ZCARD", keys("ring"))]
    reads += [("ZCARD", keys.state("failed")), ("HGET", keys("stats"), "look"), ("TIME",)]
    info, workers, ring, dead, look, clock = yield Read(reads)
    reasons = list(_server_reasons(info))
    if ring and not workers:
        reasons.append("tasks are waiting and no worker is running; start one with manage.py fairque_worker")
    late = int(clock[0]) - int(float(look or NEVER)) / 1_000_000
    if late > 60 and workers:
        reasons.append(f"maintenance is {late:.0f} s late: no worker has swept the queue")
    if dead:
        reasons.append(f"{dead} dead letters wait for someone to look at them")
    server = {
        "name": "Valkey" if "valkey_version" in info else "Redis",
        "version": info.get("valkey_version") or info.get("redis_version"),
        "memory_used": info.get("used_memory"),
        "memory_limit": info.get("maxmemory") or None,
        "eviction": info.get("maxmemory_policy"),
        "append_only_file": bool(info.get("aof_enabled")),
    }
    return Health("degraded" if reasons else "good", reasons, server)


def _server_reasons(info: Mapping[str, Any]) -> Iterable[str]:
    if not info.get("aof_enabled"):
        yield "the append-only file is off: a restart of the server loses what came since its last snapshot"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield "the server could not write its append-only file; look at its disk"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}; it should be noeviction"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if version in {"7.2.0", "7.2.1", "7.2.2", "7.2.3", "7.2.4"} and "valkey_version" not in info:
        yield f"Redis {version} writes some integers as 3e+8 inside scripts; upgrade to 7.2.5 or newer"
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    if limit and used > 0.9 * limit:
        yield f"memory is {100 * used // limit} % full; new tasks will be refused when it is full"
