"""The backlog over time: a sample of each minute and each hour, and how it develops.

A worker that sweeps a shard records the sample (`record_sample` in ``engine/maintenance/samples.py``). A minute's
sample is stored in that minute's record, which is kept for a day. The record of an hour is kept for seven days, in one
hash of ``KEPT_HOURS`` fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEPT_HOURS = 170
"""The number of hours whose records are kept: seven days, the current hour, and one hour before the first shown hour.
"""
TOTALS = ("pushed", "finished", "failed", "died", "sla_violated", "promoted", "run:sum")
"""The counters of a shard in the record of an hour, with their values at the first and at the latest sample of the
hour."""


@dataclass(frozen=True)
class HourRecord:
    """The record of one ``hour`` (its number; × 3600 is its start as Unix time). ``ready`` is the largest number of
    ready tasks in its samples, and ``oldest_us`` the longest wait of a task that could start, in microseconds. The
    record also has `TOTALS` at the first and at the latest sample.
    """

    hour: int
    ready: int
    oldest_us: int
    first: tuple[int, ...]
    latest: tuple[int, ...]

    @property
    def field(self) -> str:
        return str(self.hour % KEPT_HOURS)

    def pack(self) -> str:
        return " ".join(map(str, (self.hour, self.ready, self.oldest_us, *self.first, *self.latest)))

    @classmethod
    def parse(cls, packed: bytes | None) -> HourRecord | None:
        """Return the record in these bytes; None if it is absent or damaged."""
        try:
            hour, ready, oldest, *totals = map(int, (packed or b"").split())
        except ValueError:
            return None
        size = len(TOTALS)
        return cls(hour, ready, oldest, tuple(totals[:size]), tuple(totals[size:])) if len(totals) == 2 * size else None


@dataclass(frozen=True)
class Hour:
    """The figures of one hour on all shards. ``ready`` and ``oldest_wait`` (seconds) are None if the hour has no
    sample.

    ``totals`` are the amounts by which `TOTALS` have grown.
    """

    ready: int | None
    oldest_wait: float | None
    totals: Mapping[str, int]


def hours(shards: Sequence[Mapping[bytes, bytes]], first: int, count: int) -> list[Hour]:
    """Return the ``count`` hours from ``first`` on, from the records of each shard."""
    by_hour: list[dict[int, tuple[HourRecord, list[int]]]] = []
    for records in shards:
        parsed = sorted(filter(None, map(HourRecord.parse, records.values())), key=lambda record: record.hour)
        grown, before = {}, None
        for record in parsed:
            base = record.first if before is None else before.latest
            grown[record.hour] = record, [max(0, now - then) for now, then in zip(record.latest, base, strict=True)]
            before = record
        by_hour.append(grown)
    found = []
    for hour in range(first, first + count):
        some = [grown[hour] for grown in by_hour if hour in grown]
        totals = {name: sum(growth[index] for _, growth in some) for index, name in enumerate(TOTALS)}
        ready = sum(record.ready for record, _ in some) if some else None
        oldest = max(record.oldest_us for record, _ in some) / 1_000_000 if some else None
        found.append(Hour(ready, oldest, totals))
    return found


def fill_quiet_minutes(records: Sequence[Mapping[bytes, bytes]]) -> list[Mapping[bytes, bytes]]:
    """Return a shard's records of consecutive minutes. A minute in which nothing happened gets the backlog of the
    minute before.
    """
    ready, filled = None, list[Mapping[bytes, bytes]]()
    for record in records:
        filled.append({b"ready": ready} if ready is not None and not record else record)
        ready = record.get(b"ready") if record else ready
    return filled


def merge(records: Sequence[Mapping[bytes, bytes]]) -> dict[str, Any]:
    """Return ``ready`` and ``oldest_wait`` from the records of some minutes: the largest values of all samples; None
    without a sample.
    """
    some = [record for record in records if b"ready" in record]
    return {
        "ready": max((int(record[b"ready"]) for record in some), default=None),
        "oldest_wait": max(
            (int(record[b"oldest"]) / 1_000_000 for record in some if b"oldest" in record), default=None
        ),
    }


@dataclass(frozen=True)
class Trend:
    """The development of the backlog.

    ``seconds_left`` is the time until no task is ready, None if the backlog does not shrink. ``per_second`` is the
    number of tasks that finish in a second, ``growth`` the number of tasks by which the backlog grows in a second
    (negative if it shrinks). ``limited_user`` is a user whose own limits, and not the growth, determine
    ``seconds_left``.
    """

    seconds_left: float | None
    per_second: float
    growth: float
    limited_user: str | None = None


TREND_MIN_SECONDS = 60
"""The minimum number of seconds between two samples from which a trend is calculated."""
TREND_MAX_SECONDS = 600
"""The largest age in seconds of a sample that is used."""
TREND_MIN_CHANGE = 2
"""The minimum number of tasks by which the backlog must have changed for a trend. A smaller change may be chance."""
LONGEST_ESTIMATE_SECONDS = 30 * 86_400
"""The longest estimate in seconds. A longer time is no useful estimate, and is not returned."""


def backlog_trend(samples: Sequence[tuple[float, int]], now: float, ready: int, per_second: float) -> Trend | None:
    """Return how a backlog develops, or None if that is unknown.

    Args:
        samples: moments (Unix time in seconds) with the number of ready tasks, in any order.
        now: the moment of ``ready``.
        ready: the number of ready tasks now. The newest sample that is old enough is compared with it.
        per_second: tasks that finish in a second.

    Returns:
        None if no task is ready, if no sample is between 1 and 10 minutes old, or if the backlog does not change.
    """
    usable = [sample for sample in samples if TREND_MIN_SECONDS <= now - sample[0] <= TREND_MAX_SECONDS]
    # Use the newest sample from which the backlog has changed enough. Older samples mislead, because limits and pauses
    # may now hold back tasks that ran at that time.
    changed = [sample for sample in usable if abs(ready - sample[1]) >= TREND_MIN_CHANGE]
    if ready <= 0 or not changed:
        return None
    then, before = max(changed)
    growth = (ready - before) / (now - then)
    if growth > 0:
        return Trend(None, per_second, growth)
    left = ready / -growth
    return Trend(left, per_second, growth) if per_second > 0 and left <= LONGEST_ESTIMATE_SECONDS else None
