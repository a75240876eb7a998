"""A queue's health with the limits of the configuration: what the command and the probes tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .monitor import broken

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.health import Health


def judged(queue: FairQueue) -> Health:
    """What the engine says, and degraded if anything is over its limit in ``MONITOR``.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
    """
    health = queue.health()
    if limits := broken(queue):
        status = "degraded" if health.status == "good" else health.status
        health = replace(health, status=status, reasons=[*health.reasons, *limits])
    return health
