"""What a user had in the last hour, from the two hours by the clock that its record keeps (``lua/lib/recent_usage.lua``).

Of the hour before this one counts the part that the last sixty minutes reach into: twenty minutes past, two thirds of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import number
from django_fairque.engine.statistics.timeline import Percentiles, percentiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOUR_MICROSECONDS = 3_600_000_000
"""In microseconds."""
WAIT_BUCKETS = 16


@dataclass(frozen=True)
class LastHour:
    """``busy_seconds`` of worker time, of attempts that ended in it; ``wait`` of the tasks that started in it.

    ``wait.count`` is how many tasks started. The percentiles, of waits between 10 ms and 13 hours, are right to a
    factor of 1.8. ``waits`` is what they follow from: starts by bucket.
    """

    busy_seconds: float = 0.0
    wait: Percentiles = field(default_factory=Percentiles)
    waits: dict[int, float] = field(default_factory=dict, repr=False)


def wait_bucket_middle(bucket: int) -> float:
    """Of a bucket of waits, in seconds: the first ends at 10 ms, each of the next where three times the last did."""
    return float(0.01 * 3 ** (bucket - 0.5))


def last_hour(record: Mapping[bytes, bytes], now_us: int) -> LastHour:
    """From a user's record, as of a moment in microseconds since the epoch."""
    hour, since = divmod(now_us, HOUR_MICROSECONDS)
    written = int(number(record.get(b"hour")))
    busy, waits = 0.0, dict.fromkeys(range(WAIT_BUCKETS), 0.0)
    for at, part in ((hour, 1.0), (hour - 1, 1 - since / HOUR_MICROSECONDS)):
        if written - at in (0, 1):  # else an older hour stands at that place
            busy += part * number(record.get(b"recent:%d" % (at % 2))) / 1_000_000
            for bucket in waits:
                waits[bucket] += part * number(record.get(b"recent:%d:%d" % (at % 2, bucket)))
    return _usage(busy, waits)


def total_usage(hours: Iterable[LastHour]) -> LastHour:
    """What several users had."""
    busy, waits = 0.0, dict.fromkeys(range(WAIT_BUCKETS), 0.0)
    for each in hours:
        busy += each.busy_seconds
        for bucket, count in each.waits.items():
            waits[bucket] += count
    return _usage(busy, waits)


def _usage(busy: float, waits: dict[int, float]) -> LastHour:
    return LastHour(
        busy, percentiles(waits, wait_bucket_middle), {bucket: count for bucket, count in waits.items() if count}
    )
