"""Figures by task name: how many attempts ended and failed, how long they ran, how many tasks wait for a retry.

The server counts an attempt when it ends the lease (``lua/lib/task_names.lua``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.scripting.operations import Operation, Read, read_sound
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.statistics.queue_stats import Percentiles, percentiles

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

MAX_TASK_NAMES = 100
"""The largest number of names that a shard keeps. Attempts of other names count under the empty name."""
SCHEDULED_SAMPLE = 300
"""The number of scheduled tasks that are read to estimate how many tasks of each name wait for a retry."""
MAX_HOURS = 24
TOTALS_KEY = "stats:attempts"


@dataclass(frozen=True)
class AttemptTotals:
    """The attempts of one task name since the queue's first task: ``attempts`` ended, ``failed`` of them failed.

    A name without attempts for more than a day can be dropped for a new one. If such a name is used again, its counts
    begin at 0.
    """

    attempts: int = 0
    failed: int = 0


@dataclass(frozen=True)
class NameFigures:
    """The figures of the tasks named ``name``. The empty name stands for all names beyond the first 100.

    ``attempts`` ended in the time, ``failed`` of them failed. ``run`` are percentiles of their run times in seconds, right to
    20 %. ``retrying`` tasks wait for their next attempt after a failure now: an estimate from a sample of 300 if more tasks are
    scheduled.
    """

    name: str
    attempts: int
    failed: int
    run: Percentiles
    retrying: int

    @property
    def failed_share(self) -> float:
        """The part of the attempts that failed, from 0 to 1."""
        return self.failed / self.attempts if self.attempts else 0.0


@dataclass(frozen=True)
class NameHour:
    """The attempts of one task name in the hour from ``begin`` (Unix time) on: ``attempts`` ended, ``failed`` of them failed.
    ``run`` are percentiles of their run times as in `NameFigures`.
    """

    begin: int
    attempts: int
    failed: int
    run: Percentiles


def _bucket_middle(bucket: int) -> float:
    """Return the seconds in the middle of a bucket: ``b`` contains 2^(b/2) to 2^((b+1)/2) microseconds."""
    return float(2 ** ((bucket + 0.5) / 2) / 1_000_000)


def attempt_totals(shards: Shards) -> Operation[dict[str, AttemptTotals]]:
    """Return the attempts since the first task by task name."""
    records = yield from read_sound([("HGETALL", shard.keys(TOTALS_KEY)) for shard in shards])
    counts: dict[str, Counter[str]] = {}
    for record in records:
        for field, value in record.items():
            result, _, name = field.decode("utf-8", "replace").partition(":")
            counts.setdefault(name, Counter())[result] += int(value)
    return {name: AttemptTotals(found.total(), found["failed"]) for name, found in counts.items()}


def task_names(shards: Shards, hours: int) -> Operation[list[NameFigures]]:
    """Return the figures of each name in the current clock hour and the ``hours`` before it, the name with most
    attempts first.
    """
    check_integer(hours, "hours", 1, MAX_HOURS)
    ((seconds, _),) = yield Read([("TIME",)])
    attempts, failed = Counter[str](), Counter[str]()
    runs: dict[str, Counter[int]] = {}
    for result, bucket, name, amount in (yield from _read_attempts(shards, int(seconds) // 3600, hours + 1)):
        attempts[name] += amount
        runs.setdefault(name, Counter())[bucket] += amount
        if result == "failed":
            failed[name] += amount
    retrying = yield from _estimate_retrying(shards)
    found = [
        NameFigures(
            name,
            attempts[name],
            failed[name],
            percentiles(runs.get(name, {}), _bucket_middle),
            retrying.get(name, 0),
        )
        for name in {**attempts, **retrying}
    ]
    shown = [figures for figures in found if figures.attempts or figures.retrying]
    return sorted(shown, key=lambda figures: (-figures.attempts, figures.name))


def hours_of_name(shards: Shards, name: str) -> Operation[list[NameHour]]:
    """Return the figures of a task name in the last 24 hours by the clock, the oldest first."""
    ((seconds, _),) = yield Read([("TIME",)])
    hours = range(int(seconds) // 3600 - MAX_HOURS + 1, int(seconds) // 3600 + 1)
    records = yield from read_sound(
        [("HGETALL", shard.keys(f"{TOTALS_KEY}:{hour}")) for hour in hours for shard in shards]
    )
    size, found = len(records) // MAX_HOURS, []
    for index, hour in enumerate(hours):
        counts: dict[str, Counter[int]] = {"passed": Counter(), "failed": Counter()}
        some = records[index * size : (index + 1) * size]
        for result, bucket, found_name, amount in _parse_attempts(some):
            if found_name == name:
                counts[result][bucket] += amount
        failed, runs = counts["failed"].total(), sum(counts.values(), Counter())
        found.append(NameHour(hour * 3600, runs.total(), failed, percentiles(runs, _bucket_middle)))
    return found


def typical_run_times(shards: Shards, moment: float) -> Operation[dict[str, float]]:
    """Return the median run time in seconds of the tasks of each name in the 24 hours before a Unix time."""
    runs: dict[str, Counter[int]] = {}
    attempts = yield from _read_attempts(shards, int(moment) // 3600, MAX_HOURS)
    for _result, bucket, name, amount in attempts:
        runs.setdefault(name, Counter())[bucket] += amount
    return {name: percentiles(buckets, _bucket_middle).p50 for name, buckets in runs.items() if name}


def _read_attempts(shards: Shards, this_hour: int, hours: int) -> Operation[Iterator[tuple[str, int, str, int]]]:
    """Read the attempts of ``hours``, of which this one is the last: result, bucket of the run time, name and number."""
    keys = [f"{TOTALS_KEY}:{this_hour - back}" for back in range(hours)]
    records = yield from read_sound([("HGETALL", shard.keys(key)) for shard in shards for key in keys])
    return _parse_attempts(records)


def _parse_attempts(records: Sequence[Mapping[bytes, bytes]]) -> Iterator[tuple[str, int, str, int]]:
    for record in records:
        for field, value in record.items():
            result, bucket, name = field.decode("utf-8", "replace").split(":", 2)
            yield result, int(bucket.rstrip("unb")), name, int(value)  # remove the lane, which marks a kept SLA


def _estimate_retrying(shards: Shards) -> Operation[dict[str, int]]:
    """Estimate how many tasks of each name wait for a retry, from a sample of the scheduled tasks."""
    present = list(shards)
    size = max(1, SCHEDULED_SAMPLE // max(1, len(present)))
    reads = [(command, shard.keys.state("scheduled")) for shard in present for command in ("ZCARD", "ZRANDMEMBER")]
    replies = yield Read([(*read, size) if read[0] == "ZRANDMEMBER" else read for read in reads])
    samples = list(zip(present, replies[::2], replies[1::2], strict=True))
    tasks = [(shard.keys, task_id.decode()) for shard, _total, ids in samples for task_id in ids]
    records = iter((yield from read_fields(tasks, ("name", "retries")))[0])
    found: dict[str, float] = {}
    for _shard, total, ids in samples:
        for _ in ids:
            name, retries = next(records)
            if retries is not None and retries.isdigit() and int(retries) > 0:
                text = (name or b"").decode("utf-8", "replace")
                found[text] = found.get(text, 0.0) + total / len(ids)
    return {name: round(count) for name, count in found.items()}
