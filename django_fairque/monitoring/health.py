"""A queue's health with the limits of the configuration: what the command and the probes report."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from django_fairque.conf import get_config
from django_fairque.engine.scripting.commands import Keys
from django_fairque.engine.statistics.health import Health
from django_fairque.engine.transport.server_checks import APPEND_ONLY_FILE_IS_OFF, probe_server
from django_fairque.monitoring.monitor import exceeded_limits

if TYPE_CHECKING:
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue


def judged(queue: FairQueue) -> Health:
    """What the engine says, and degraded if anything is over its limit in ``MONITOR``.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
    """
    health = queue.health()
    if limits := exceeded_limits(queue):
        status = "degraded" if health.status == "good" else health.status
        health = replace(health, status=status, reasons=[*health.reasons, *limits])
    return health


def examined(queue: FairQueue) -> Health:
    """As `judged`, with more about the server, and down when it can't do what is needed. Writes a key for ten seconds.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
    """
    health, redis = judged(queue), get_config().redis
    if redis.sentinel:
        health.server["mode"] = "sentinel"
    if health.server["role"] != "primary":
        return health
    living = next(shard for shard in range(queue.config.shards) if shard not in health.missing_shards)
    key = Keys(queue.config.prefix, queue.name, living)("probe")
    wanted = queue.config.replicas_to_confirm
    found = asdict(probe_server(queue.client, key, replicas=wanted, has_log=any(map(is_memorydb, redis.hosts))))
    refusals = found.pop("refusals")
    excused = APPEND_ONLY_FILE_IS_OFF if found["durability"] == "managed-log" else None
    reasons = [*refusals, *(each for each in health.reasons if each != excused)]
    status = "down" if refusals else "good" if health.status == "degraded" and not reasons else health.status
    return replace(health, status=status, reasons=reasons, server={**health.server, **found})


def is_memorydb(host: str) -> bool:
    """Whether it is Amazon MemoryDB, which only its name shows: its INFO has no field about the log."""
    return ".memorydb." in host and host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


STATUS_FILE_MAX_AGE_SECONDS = 10.0
"""Seconds; a worker writes its file once a second, so that an older one is that of a worker which hangs or is gone."""


def worker_health(path: Path) -> Health:
    """Good when the worker is healthy, degraded when it runs and is not, down when it does not write its file.

    No request is sent to the server: this is the state of one worker.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written, status, reasons = float(content["time"]), str(content["status"]), list(map(str, content["reasons"]))
    except OSError as error:
        return _down(f"{path} can't be read: {error.strerror or error}; is a worker running with --health-file {path}?")
    except (ValueError, TypeError, KeyError):
        return _down(f"{path} is not the health file of a worker")
    age = time.time() - written
    if age > STATUS_FILE_MAX_AGE_SECONDS:
        return _down(f"the worker has not written {path} for {age:.0f} s: it hangs, or was killed")
    if status == "starting":
        reasons = ["the worker is starting"]
    facts = {name: value for name, value in content.items() if name not in {"status", "reasons"}}
    return Health("good" if status == "healthy" else "degraded", reasons, {"worker": facts})


def _down(reason: str) -> Health:
    return Health("down", [reason], {})
