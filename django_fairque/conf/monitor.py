"""The section of what is watched: limits beyond which a queue is not well."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from django_fairque.engine.options import Number, Options, seconds


def limit(what: str, default: float | None = None) -> Any:
    return Field(default=default, ge=0, description=f"{what}, at least 0")


class MonitorConfig(Options):
    """``MONITOR``: each field is the limit of one of `django_fairque.monitoring.monitor.METRICS`; None: not watched."""

    depth: Number | None = limit("a number of tasks")
    oldest_wait: Number | None = limit("a number of seconds")
    wait_p95: Number | None = limit("a number of seconds")
    run_p95: Number | None = limit("a number of seconds")
    failure_share: Number | None = Field(default=None, ge=0, le=1, description="a fraction from 0 to 1")
    dead: Number | None = limit("a number of dead letters")
    deferred: Number | None = limit("a number of tasks")
    sla_violated: Number | None = limit("a number of tasks")
    idle_backlog: Number | None = limit("a number of users")
    for_seconds: Number = seconds(60, least=0)
