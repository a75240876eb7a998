"""Recent figures: of a queue in spans of whole minutes, for charts, and of a user in the last hour.

A user's record keeps two hours by the clock (``lua/lib/recent_usage.lua``). Of the hour before this one the part counts that the
last sixty minutes reach into: at twenty minutes past, two thirds of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import number
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.scripting.operations import Operation, Read

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of ``count`` durations, in seconds: ``p50``, ``p95`` and ``p99``. Each is right to 9 %. All are 0
    when there were none.
    """

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class Distribution:
    """All durations since the queue's first task: how many are in each bucket (``buckets``), and their sum in seconds
    (``sum_seconds``).

    Bucket ``b`` contains durations from 2^(b/4) to 2^((b+1)/4) microseconds.
    """

    buckets: dict[int, int] = field(default_factory=dict)
    sum_seconds: float = 0.0


@dataclass
class Histograms:
    """Those of one minute, or of several added up."""

    waits: dict[int, Counter[int]] = field(default_factory=dict)
    """By priority."""
    runs: Counter[int] = field(default_factory=Counter)
    resolutions: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, records: Iterable[Mapping[bytes, bytes]]) -> Histograms:
        """Those in the records of some minutes."""
        found = cls()
        for name, value in (item for record in records for item in record.items()):
            kind, *rest = name.split(b":")
            if kind == b"wait":
                found.waits.setdefault(int(rest[0]), Counter())[int(rest[1])] += int(value)
            elif kind == b"run":
                found.runs[int(rest[0])] += int(value)
            elif kind == b"resolve":
                found.resolutions[int(rest[0])] += int(value)
        return found

    @property
    def wait(self) -> Percentiles:
        """Of the waits of all priorities together."""
        return percentiles(sum(self.waits.values(), Counter()))

    @property
    def run(self) -> Percentiles:
        return percentiles(self.runs)

    @property
    def wait_by_priority(self) -> dict[str, Percentiles]:
        return {Priority(number).name: percentiles(self.waits[number]) for number in sorted(self.waits)}


def count_tasks(records: Sequence[Mapping[bytes, bytes]]) -> dict[str, int]:
    """The numbers of tasks in the records of some minutes, as `Span` has them."""
    counted = ("pushed", "finished", "failed", "dead", "violated", "promoted")
    return {name: sum(int(record.get(name.encode(), 0)) for record in records) for name in counted}


def add_up_records(records: Sequence[Mapping[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """The records of several shards as one: what is counted there is added up."""
    if len(records) == 1:
        return records[0]
    total: Counter[bytes] = Counter()
    for record in records:
        total.update({name: int(value) for name, value in record.items()})
    return {name: b"%d" % value for name, value in total.items()}


def distribution(counters: Mapping[str, int], kind: str) -> Distribution:
    """The one of a kind (wait or run) among a queue's counters."""
    found = {name.partition(":")[2]: value for name, value in counters.items() if name.startswith(f"{kind}:")}
    total = found.pop("sum", 0) / 1_000_000
    return Distribution({int(bucket): found[bucket] for bucket in sorted(found, key=int)}, total)


def bucket_middle(bucket: int) -> float:
    """Of a bucket, in seconds: its geometric mean."""
    return float(2 ** ((bucket + 0.5) / 4) / 1_000_000)


def percentiles(histogram: Mapping[int, float], middle: Callable[[int], float] = bucket_middle) -> Percentiles:
    """Of the durations in some buckets; each may count for a part. Fewer than half a duration are none."""
    total = sum(histogram.values())
    if round(total) == 0:
        return Percentiles()
    buckets = sorted(histogram)

    def at(share: float) -> float:
        seen = accumulate(histogram[bucket] for bucket in buckets)
        index = next(index for index, number in enumerate(seen) if number >= share * total)
        return middle(buckets[index])

    return Percentiles(round(total), at(0.5), at(0.95), at(0.99))


KEPT_MINUTES = 1440
"""Minutes: what is kept (a little longer) by default, see ``stats_minutes_ttl``."""


@dataclass(frozen=True)
class Span:
    """What happened from ``begin`` (Unix time) on, for ``seconds``: the latest span is still going on.

    These are numbers of tasks: ``pushed``, ``finished``, ``failed`` (attempts), ``dead`` (new dead letters),
    ``violated`` (started after their SLA), ``promoted`` (moved up a class). ``wait`` and ``run`` are percentiles of
    the attempts that ended in it: how long they had waited for their start, and how long they ran.
    """

    begin: int
    seconds: int
    pushed: int
    finished: int
    failed: int
    dead: int
    violated: int
    promoted: int
    wait: Percentiles
    run: Percentiles


@dataclass(frozen=True)
class Activity:
    """The ``spans``, the oldest first, and the percentiles of all of them together in seconds: ``wait`` and ``run`` of
    waits and run times, ``wait_by_priority`` of waits by priority.
    """

    spans: list[Span]
    wait: Percentiles
    run: Percentiles
    wait_by_priority: dict[str, Percentiles] = field(default_factory=dict)
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now: what happened there is in none of the figures."""


def activity(queue: Shards, minutes: int, per_span: int) -> Operation[Activity]:
    """Return what happened on the shards of ``queue`` in the last ``minutes`` (1 to 1440), in spans of ``per_span``
    minutes.

    Raises `TaskValidationError` unless ``minutes`` is in that range and a multiple of ``per_span``.
    """
    are_whole = isinstance(minutes, int) and isinstance(per_span, int)
    if not (are_whole and 1 <= per_span <= minutes <= KEPT_MINUTES) or minutes % per_span:
        raise TaskValidationError(
            f"minutes must be from 1 to {KEPT_MINUTES} and a multiple of per_span, got "
            f"minutes={short(minutes)}, per_span={short(per_span)}"
        )
    shards = tuple(queue)
    (clock,) = yield Read([("TIME",)])
    now = int(clock[0])
    first = now // 60 // per_span * per_span - minutes + per_span  # spans begin at round times: they don't flicker
    reads = [("HGETALL", shard.keys.minute(first + index)) for index in range(minutes) for shard in shards]
    replies, size = (yield Read(reads)), len(shards)
    records = [add_up_records(replies[at : at + size]) for at in range(0, len(replies), size)]
    spans = []
    for index in range(0, minutes, per_span):
        begin, some = (first + index) * 60, records[index : index + per_span]
        part = Histograms.of(some)
        spans.append(
            Span(begin, min(60 * per_span, now - begin + 1), wait=part.wait, run=part.run, **count_tasks(some))
        )
    whole = Histograms.of(records)
    return Activity(spans, whole.wait, whole.run, whole.wait_by_priority, queue.missing)


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
