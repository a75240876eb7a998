"""Figures kept inside the scripts, so that they can't drift: totals, depth, per minute, percentiles, health."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .commands import NEVER, Commands
from .priority import Priority
from .records import TaskState
from .steps import Read, Steps
from .transport import INFO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MINUTES = 60


@dataclass(frozen=True)
class Percentiles:
    """Of the last hour's tasks, in seconds; each is right to 9 %. All 0 when there were none."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class MinuteStats:
    """What happened in one minute (``minute`` × 60 is its start in seconds since the epoch)."""

    minute: int
    pushed: int
    finished: int
    failed: int
    dead: int


@dataclass(frozen=True)
class QueueStats:
    """A queue at one moment; counters since its first task, percentiles and minutes of the last hour."""

    queue: str
    states: dict[str, int]
    depth: dict[str, int]
    totals: dict[str, int]
    users_ready: int
    workers: int
    paused: bool
    oldest_wait_seconds: float
    wait: Percentiles
    wait_by_priority: dict[str, Percentiles]
    run: Percentiles
    minutes: list[MinuteStats] = field(default_factory=list)


@dataclass(frozen=True)
class Health:
    """``status`` is good, degraded or down, ``reasons`` say why in sentences, ``server`` what answers."""

    status: str
    reasons: list[str]
    server: dict[str, Any]


def stats(commands: Commands) -> Steps[QueueStats]:
    keys = commands.keys
    reads: list[tuple[Any, ...]] = [("TIME",), ("HGETALL", keys("stats")), ("ZCARD", keys("ring"))]
    reads += [("ZCARD", keys("workers")), ("ZRANGE", keys("state:queued"), 0, 0, "WITHSCORES")]
    reads += [("ZCARD", keys.state(state.value)) for state in TaskState]
    clock, counters, ring, workers, oldest, *sizes = yield Read(reads)
    now = int(clock[0])
    last = now // 60
    minutes = yield Read([("HGETALL", keys.minute(minute)) for minute in range(last - MINUTES + 1, last + 1)])
    totals = {name.decode(): int(float(value)) for name, value in counters.items()}
    waits: dict[int, dict[int, int]] = {}
    runs: dict[int, int] = {}
    for record in minutes:
        _add_histograms(record, waits, runs)
    everything: dict[int, int] = {}
    for histogram in waits.values():
        for bucket, number in histogram.items():
            everything[bucket] = everything.get(bucket, 0) + number
    internal = {"clock", "token", "stamp", "arrival", "vtime", "mean", "look", "paused", "minute"}
    return QueueStats(
        queue=commands.name,
        states={state.value: int(size) for state, size in zip(TaskState, sizes, strict=True)},
        depth={priority.name: totals.get(f"depth:{priority.value}", 0) for priority in Priority},
        totals={k: v for k, v in sorted(totals.items()) if k not in internal and not k.startswith("depth:")},
        users_ready=int(ring),
        workers=int(workers),
        paused=totals.get("paused", 0) == 1,
        oldest_wait_seconds=(yield from _oldest_wait(commands, oldest, now)),
        wait=percentiles(everything),
        wait_by_priority={Priority(number).name: percentiles(waits[number]) for number in sorted(waits)},
        run=percentiles(runs),
        minutes=[_minute(last - MINUTES + 1 + index, record) for index, record in enumerate(minutes)],
    )


def _oldest_wait(commands: Commands, oldest: list[Any], now: int) -> Steps[float]:
    """How long the queued task whose promise ends first has waited (promises run with waiting)."""
    if not oldest:
        return 0.0
    task_id = oldest[0][0] if isinstance(oldest[0], (list, tuple)) else oldest[0]
    (found,) = yield Read([("HMGET", commands.keys.task(task_id.decode()), "ready", "created")])
    since = int(found[0] or found[1] or now * 1_000_000)
    return max(0.0, now - since / 1_000_000)


def _add_histograms(record: Mapping[bytes, bytes], waits: dict[int, dict[int, int]], runs: dict[int, int]) -> None:
    for name, value in record.items():
        kind, *rest = name.split(b":")
        if kind == b"wait":
            histogram, bucket = waits.setdefault(int(rest[0]), {}), int(rest[1])
            histogram[bucket] = histogram.get(bucket, 0) + int(value)
        elif kind == b"run":
            runs[int(rest[0])] = runs.get(int(rest[0]), 0) + int(value)


def percentiles(histogram: Mapping[int, int]) -> Percentiles:
    """Percentiles of a histogram whose bucket b holds durations from 2^(b/4) to 2^((b+1)/4) microseconds."""
    total = sum(histogram.values())
    if not total:
        return Percentiles()
    buckets = sorted(histogram)

    def at(share: float) -> float:
        seen = accumulate(histogram[bucket] for bucket in buckets)
        index = next(index for index, number in enumerate(seen) if number >= share * total)
        return float(2 ** ((buckets[index] + 0.5) / 4) / 1_000_000)

    return Percentiles(total, at(0.5), at(0.95), at(0.99))


def _minute(minute: int, record: Mapping[bytes, bytes]) -> MinuteStats:
    def number(name: bytes) -> int:
        return int(record.get(name, 0))

    return MinuteStats(minute, number(b"pushed"), number(b"finished"), number(b"failed"), number(b"dead"))


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
