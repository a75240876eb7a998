"""Calculates the slots, processes and server cores that the load of a queue's last day needs: ``fairque_stats
--sizing``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from django_fairque.monitoring.formatting import duration, number, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import Span

MIN_SECONDS = 600
"""Minimum seconds of the current hour that must have passed before it can count as the busiest hour."""
USED_SHARE = 0.7
"""Fraction of the slots that may be busy in the busiest hour. If tasks arrive at random, their average wait is then 2.3
run times with one slot, 1 with two slots, 0.4 with four and 0.07 with ten (Erlang's formula C)."""
SLOTS_OF_PROCESS = 8
"""Number of slots of a process: the default of ``CONCURRENCY``."""
SERVER_SECONDS = 0.0002
"""Processor time in seconds that the server needs for a task from its push to its end, rounded up
(docs/contributing/performance.md)."""
SERVER_USED_SHARE = 0.6
"""Fraction of one processor core that the tasks of a shard may use."""


@dataclass(frozen=True)
class Sizing:
    """The load of the busiest hour of the last day, and the resources that it needs.

    ``begin`` is the start of that hour (Unix time). ``attempts`` is the number of attempts of the whole day. ``rate``
    is the number of attempts per second, and ``mean_run`` their mean run time in seconds, both in the busiest hour.
    ``slots``, ``processes`` (of 8 slots) and ``shards`` are the needed numbers. ``cores`` is the number of server cores
    that the tasks use.
    """

    begin: int
    attempts: int
    rate: float
    mean_run: float
    slots: int
    processes: int
    cores: float
    shards: int


def measure_sizing(queue: FairQueue) -> Sizing | None:
    """Return the sizing from the last 24 hours of the queue; None if no attempt ended in that time while a worker
    recorded figures.
    """
    spans = queue.get_activity(2 * 24 * 60, 60).spans[-25:]
    return choose_sizing([span for span in spans if span.mean_run is not None])


def choose_sizing(hours: Sequence[Span]) -> Sizing | None:
    """Return the sizing for these hours, each with a mean run time; None if there are no hours."""
    if not hours:
        return None
    long = [hour for hour in hours if hour.seconds >= MIN_SECONDS] or hours
    busiest = max(long, key=lambda hour: _attempts(hour) * (hour.mean_run or 0) / hour.seconds)
    rate, mean_run = _attempts(busiest) / busiest.seconds, busiest.mean_run or 0.0
    slots = max(1, math.ceil(rate * mean_run / USED_SHARE))
    cores = max(_attempts(hour) / hour.seconds for hour in long) * SERVER_SECONDS
    return Sizing(
        busiest.begin,
        sum(map(_attempts, hours)),
        rate,
        mean_run,
        slots,
        math.ceil(slots / SLOTS_OF_PROCESS),
        cores,
        max(1, math.ceil(cores / SERVER_USED_SHARE)),
    )


def sizing_lines(sizing: Sizing | None) -> Iterator[str]:
    """Yield the sizing as lines for people."""
    if sizing is None:
        yield "nothing has run in the last 24 hours: run a worker for some hours first"
        return
    begin = datetime.fromtimestamp(sizing.begin, timezone.utc)
    processes, shards = pluralize(sizing.processes, "process", "processes"), pluralize(sizing.shards, "shard")
    yield f"last day   {number(sizing.attempts)} attempts"
    yield f"busiest    the hour from {begin:%H:%M} UTC: {sizing.rate:.3g} attempts/s of {duration(sizing.mean_run)} each"
    yield f"slots      {number(sizing.slots)}: {USED_SHARE:.0%} of them busy in that hour"
    at_once = f"with --concurrency {SLOTS_OF_PROCESS} if tasks wait for services"
    yield f"processes  {processes} {at_once}, one for each slot if they compute"
    yield f"server     {sizing.cores:.2g} of a core: {shards}"


def _attempts(hour: Span) -> int:
    return hour.finished + hour.failed
