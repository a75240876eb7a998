"""Judges a queue's health with the limits of the configuration, for the command and the probes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.scripting.commands import Keys
from django_fairque.engine.statistics.health import Health, health
from django_fairque.engine.statistics.queue_stats import stats
from django_fairque.engine.transport.server_checks import APPEND_ONLY_FILE_IS_OFF
from django_fairque.monitoring.monitor import exceeded_limits
from django_fairque.monitoring.server_probe import probe_server
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from django_fairque.conf import RedisConfig
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")


def judge_health(queue: FairQueue) -> Health:
    """Return the health of the queue. In addition to the engine's rules, the health is degraded if a figure is over its limit
    in ``MONITOR``, or if a model event is switched off in this process.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
    """
    return next(judged_together([queue]))


def judged_together(queues: Sequence[FairQueue]) -> Iterator[Health]:
    """Yield the health (`judge_health`) of several queues on one server. All queues are read in as many round trips as
    one queue.

    If a queue can't be read, the health of the queues before it is yielded first.
    """
    return (health for health, _ in judged_with(queues, _read_nothing))


def _read_nothing(_shards: Shards) -> Operation[None]:
    yield from ()


def judged_with(queues: Sequence[FairQueue], read: Callable[[Shards], Operation[T]]) -> Iterator[tuple[Health, T]]:
    """Yield the health of each queue, as `judged_together`, and what ``read`` reads in the same round trips."""
    try:
        found = _judge(queues, read)
    except RedisConnectionError:
        raise
    except FairQueueError:
        if len(queues) == 1:
            raise
        for queue in queues:
            yield from judged_with([queue], read)
    else:
        yield from found


def _judge(queues: Sequence[FairQueue], read: Callable[[Shards], Operation[T]]) -> list[tuple[Health, T]]:
    config = get_config()
    count = len(queues)
    figures = [(queue, stats) for queue in queues] if config.monitor.limits else []
    found = read_in_lockstep([*((queue, health) for queue in queues), *((queue, read) for queue in queues), *figures])
    excused = APPEND_ONLY_FILE_IS_OFF if durable_log(config.redis) else None
    judgments = []
    for index, (queue, seen) in enumerate(zip(queues, found[:count], strict=True)):
        reasons = [reason for reason in seen.reasons if reason != excused]
        reasons += registry.mistakes()
        if figures:
            reasons += exceeded_limits(queue, found[2 * count + index])
        status = "down" if seen.status == "down" else "degraded" if reasons else "good"
        judgments.append((replace(seen, status=status, reasons=reasons), found[count + index]))
    return judgments


def examine_health(queue: FairQueue) -> Health:
    """Judge the health like `judge_health`, and examine the server in addition. The health is down if the server
    refuses an operation that the queue needs.

    The test writes a key to the server, which expires after ten seconds.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
    """
    health, redis = judge_health(queue), get_config().redis
    if redis.sentinel:
        health.server["mode"] = "sentinel"
    if health.server["role"] != "primary":
        return health
    living = next(shard for shard in range(queue.config.shards) if shard not in health.missing_shards)
    key = Keys(queue.config.prefix, queue.name, living)("probe")
    wanted = queue.config.replicas_to_confirm
    found = asdict(probe_server(queue.client, key, replicas=wanted, log=durable_log(redis)))
    refusals = found.pop("refusals")
    status = "down" if refusals else health.status
    reasons = [*refusals, *health.reasons]
    return replace(health, status=status, reasons=reasons, server={**health.server, **found})


def durable_log(redis: RedisConfig) -> str | None:
    """Return the durability of a server that keeps a log on several machines; None if the server is not known to keep
    such a log.

    The command ``INFO`` does not show such a log. Amazon MemoryDB is recognized by the host's name, because its log
    can't be switched off. The log of Amazon ElastiCache can be switched off, so the setting ``DURABILITY`` declares it.
    """
    return redis.durability or ("managed-log" if any(map(_is_memorydb, redis.hosts)) else None)


def _is_memorydb(host: str) -> bool:
    return ".memorydb." in host and host.endswith(AWS_DOMAINS)


def is_elasticache(host: str) -> bool:
    """Return whether the host's name belongs to Amazon ElastiCache."""
    return ".cache." in host and host.endswith(AWS_DOMAINS)


AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn")


STATUS_FILE_MAX_AGE_SECONDS = 10.0
"""Maximum age in seconds of a worker's status file. A worker writes its file once a second, so the worker of an older
file hangs or is gone."""


def worker_health(path: Path) -> Health:
    """Return the health of one worker from its status file: good if the worker is healthy, degraded if it runs but is
    not healthy, and down if it no longer writes the file.

    No request is sent to the server.
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
