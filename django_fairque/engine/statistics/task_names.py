"""Figures by task name: how many attempts ended and failed, how long they ran, how many tasks wait for a retry.

Workers add them up and record them every few seconds, in one record of each hour on the first shard.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_text, new_nonce
from django_fairque.engine.scripting.operations import Operation, Read, read_sound
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.statistics.queue_stats import Percentiles, percentiles

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

MAX_TASK_NAMES = 100
"""Names that are kept of each hour (``lua/lib/task_names.lua``); the attempts of others count under the empty name."""
MAX_NAMES_PER_CALL = 200
SCHEDULED_SAMPLE = 300
"""Scheduled tasks that are read to learn how many of each name wait for a retry."""
MAX_HOURS = 24


@dataclass
class AttemptCounts:
    """Attempts of one task name that ended: how many (``attempts``), how many of them ``failed``, and the number of attempts by
    the bucket of their run time (``runs``, see `run_bucket`).
    """

    attempts: int = 0
    failed: int = 0
    runs: Counter[int] = field(default_factory=Counter)

    def add(self, took: float | None, *, has_failed: bool) -> None:
        """Count an attempt that ran for ``took`` seconds (None if unknown)."""
        self.attempts += 1
        self.failed += has_failed
        if took is not None:
            self.runs[run_bucket(took)] += 1


@dataclass(frozen=True)
class NameFigures:
    """The figures of the tasks named ``name``. The empty name stands for all names beyond the first 100 of an hour.

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


def run_bucket(seconds: float) -> int:
    """The bucket of a run time: bucket ``b`` contains 2^(b/2) to 2^((b+1)/2) microseconds."""
    return math.floor(2 * math.log2(max(1.0, seconds * 1_000_000)))


def _bucket_middle(bucket: int) -> float:
    return float(2 ** ((bucket + 0.5) / 2) / 1_000_000)


def record_task_names(shards: Shards, counts: Mapping[str, AttemptCounts], now: float | None) -> Operation[None]:
    """Record these attempts, at most `MAX_NAMES_PER_CALL` names in a call."""
    if not isinstance(counts, Mapping):
        raise TaskValidationError(f"expected a mapping of task names to AttemptCounts, got {short(counts)}")
    check_integer(len(counts), "the number of names", 1, MAX_NAMES_PER_CALL)
    for name, name_counts in counts.items():
        check_text(name, "a task name")
        if not isinstance(name_counts, AttemptCounts):
            raise TaskValidationError(f"the figures of {short(name)} must be AttemptCounts, got {short(name_counts)}")
    args: list[str | int] = [len(counts)]
    for name, name_counts in counts.items():
        figures = {
            "attempts": name_counts.attempts,
            "failed": name_counts.failed,
            **{f"run:{b}": n for b, n in name_counts.runs.items()},
        }
        args += [name, len(figures), *(part for pair in figures.items() for part in pair)]
    yield shards.home.call("record_names", args, now, reply=new_nonce())


def task_names(shards: Shards, hours: int) -> Operation[list[NameFigures]]:
    """Return the figures of the last ``hours``, the name with most attempts first.

    The oldest hour by the clock counts with the part that lies in this time. While the first shard can't be reached,
    only retries are known.
    """
    check_integer(hours, "hours", 1, MAX_HOURS)
    ((seconds, _),) = yield Read([("TIME",)])
    this_hour, passed = divmod(int(seconds), 3600)
    parts = [1.0] * hours + [1 - passed / 3600]
    attempts, failed = Counter[str](), Counter[str]()
    runs: dict[str, Counter[int]] = {}
    for key, amount in (yield from _read_figures(shards, this_hour, parts)):
        kind, _, rest = key.partition(":")
        if kind == "attempts":
            attempts[rest] += amount  # type: ignore[assignment]  # parts of an hour
        elif kind == "failed":
            failed[rest] += amount  # type: ignore[assignment]
        elif kind == "run":
            bucket, _, name = rest.partition(":")
            runs.setdefault(name, Counter())[int(bucket)] += amount  # type: ignore[assignment]
    retrying = yield from _estimate_retrying(shards)
    found = [
        NameFigures(
            name,
            round(attempts[name]),
            round(failed[name]),
            percentiles(runs.get(name, {}), _bucket_middle),
            retrying.get(name, 0),
        )
        for name in {**attempts, **retrying}
    ]
    shown = [figures for figures in found if figures.attempts or figures.retrying]
    return sorted(shown, key=lambda figures: (-figures.attempts, figures.name))


def typical_run_times(shards: Shards, moment: float) -> Operation[dict[str, float]]:
    """Return the median run time in seconds of the tasks of each name in the 24 hours before a Unix time."""
    runs: dict[str, Counter[int]] = {}
    for key, amount in (yield from _read_figures(shards, int(moment) // 3600, [1.0] * MAX_HOURS)):
        kind, _, rest = key.partition(":")
        if kind == "run":
            bucket, _, name = rest.partition(":")
            runs.setdefault(name, Counter())[int(bucket)] += int(amount)
    return {name: percentiles(buckets, _bucket_middle).p50 for name, buckets in runs.items() if name}


def _read_figures(shards: Shards, this_hour: int, parts: Sequence[float]) -> Operation[Iterator[tuple[str, float]]]:
    """Read the figures of this hour and the hours before. Of each hour, this part counts."""
    keys = [f"stats:names:{this_hour - back}" for back in range(len(parts))]
    records = yield from read_sound([("HGETALL", shard.keys(key)) for shard in shards for key in keys])
    return (
        (key.decode("utf-8", "replace"), part * int(value))
        for record, part in zip(records, [*parts] * (len(records) // len(parts)), strict=True)
        for key, value in record.items()
    )


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
