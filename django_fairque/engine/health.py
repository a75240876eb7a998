"""Whether the server keeps tasks safe and work is being done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .commands import NEVER, Commands
from .steps import Read, Steps
from .transport import INFO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


LATE = 60
"""Seconds after which maintenance that should have been done by now is missing."""


@dataclass(frozen=True)
class Health:
    """``status`` is good, degraded or down (no task is accepted), ``reasons`` say why in sentences, ``server`` what answers."""

    status: str
    reasons: list[str]
    server: dict[str, Any]


def attendance(commands: Commands, now: int) -> list[tuple[Any, ...]]:
    """Reads the number of workers that live at ``now`` (µs), then, kind by kind, of what is due and waits for their
    maintenance. Workers that have died are counted out here: when all have, none is left to remove them."""
    keys = commands.keys
    due = (keys.state("scheduled"), keys.state("started"), keys("throttled"))
    return [("ZCOUNT", keys("workers"), now, "+inf"), *(("ZCOUNT", key, "-inf", now) for key in due)]


def health(commands: Commands) -> Steps[Health]:
    """Whether the server keeps tasks safe and work is being done; raises when the server can't be reached."""
    keys = commands.keys
    reads: list[tuple[Any, ...]] = [(*INFO, "persistence", "replication"), ("ZCARD", keys("ring")), ("TIME",)]
    reads += [("ZCARD", keys.state("failed")), ("HGET", keys("stats"), "look")]
    info, ring, clock, dead, look = yield Read(reads)
    now = int(clock[0]) * 1_000_000 + int(clock[1])
    workers, *due = yield Read(attendance(commands, now))
    refusals, reasons = list(_refusals(info)), list(_server_reasons(info))
    if not workers and (ring or sum(map(int, due))):
        reasons.append("tasks are waiting and no worker is running; start one with manage.py fairque_worker")
    late = (now - float(look or NEVER)) / 1_000_000
    if workers and late > LATE + commands.config.queue_cleanup_interval:
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
    status = "down" if refusals else "degraded" if reasons else "good"
    return Health(status, [*refusals, *reasons], server)


def _refusals(info: Mapping[str, Any]) -> Iterable[str]:
    """Why nothing can be written."""
    # A cluster's client asks any node of it, and sends what it writes to the right one.
    if info.get("role") == "slave" and info.get("redis_mode") != "cluster":
        yield "the server is a read-only replica; connect to the primary"
    if info.get("aof_last_write_status", "ok") != "ok":
        yield "the server could not write its append-only file and refuses changes; look at its disk"


def _server_reasons(info: Mapping[str, Any]) -> Iterable[str]:
    if not info.get("aof_enabled"):
        yield "the append-only file is off: a restart of the server loses what came since its last snapshot"
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield "the server could not write its last snapshot, and may refuse changes until it can; look at its disk"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy is {policy}; it should be noeviction"
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if version in {"7.2.0", "7.2.1", "7.2.2", "7.2.3", "7.2.4"} and "valkey_version" not in info:
        yield f"Redis {version} writes some integers as 3e+8 inside scripts; upgrade to 7.2.5 or newer"
    limit, used = int(info.get("maxmemory") or 0), int(info.get("used_memory") or 0)
    if limit and used > 0.9 * limit:
        yield f"memory is {100 * used // limit} % full; new tasks will be refused when it is full"
