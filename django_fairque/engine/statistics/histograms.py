"""Histograms as the scripts keep them, and percentiles of them.

Bucket b holds durations from 2^(b/4) to 2^((b+1)/4) microseconds, so a percentile is right to 9 %.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class Percentiles:
    """Of some durations, in seconds; each is right to 9 %. All 0 when there were none."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True)
class Distribution:
    """All durations since the queue's first task: how many fell into each bucket, and their sum in seconds."""

    buckets: dict[int, int] = field(default_factory=dict)
    sum_seconds: float = 0.0


@dataclass
class Histograms:
    """Those of one minute, or of several added up."""

    waits: dict[int, Counter[int]] = field(default_factory=dict)
    """By priority."""
    runs: Counter[int] = field(default_factory=Counter)
    resolutions: Counter[int] = field(default_factory=Counter)

    def add(self, record: Mapping[bytes, bytes]) -> None:
        """Add a minute's record."""
        for name, value in record.items():
            kind, *rest = name.split(b":")
            if kind == b"wait":
                self.waits.setdefault(int(rest[0]), Counter())[int(rest[1])] += int(value)
            elif kind == b"run":
                self.runs[int(rest[0])] += int(value)
            elif kind == b"resolve":
                self.resolutions[int(rest[0])] += int(value)

    @property
    def wait(self) -> Counter[int]:
        """Of all priorities together."""
        together: Counter[int] = Counter()
        for histogram in self.waits.values():
            together += histogram
        return together


def summed(records: Sequence[Mapping[bytes, bytes]]) -> Mapping[bytes, bytes]:
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


def middle(bucket: int) -> float:
    """Of a bucket, in seconds: its geometric mean."""
    return float(2 ** ((bucket + 0.5) / 4) / 1_000_000)


def percentiles(histogram: Mapping[int, float], middle: Callable[[int], float] = middle) -> Percentiles:
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
