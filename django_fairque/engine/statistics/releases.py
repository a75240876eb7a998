"""Attempts by task name and release of the project's code (``lua/lib/releases.lua``), and the tasks that a release made worse."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from django_fairque.engine.scripting.operations import Operation, read_sound
from django_fairque.engine.statistics.queue_stats import percentiles

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

RELEASES_KEY = "stats:releases"
MIN_ATTEMPTS = 30
"""The minimum number of attempts of a release that is compared; for run times, of attempts that did not fail."""
SLOWER_FACTOR, SLOWER_SECONDS = 1.5, 0.010
FAILURE_POINTS = 0.05
STANDARD_ERRORS = 3.0
RECOVERED_PART = 0.5
"""An incident is over when the difference is less than this part of the difference that opens an incident, so that
small changes do not close and open it again and again.
"""
RUNNING_SECONDS = 600.0
"""A release still runs if it ended an attempt at most this long before the latest attempt of the name."""
FORGOTTEN_SECONDS = 86_400.0
"""If the latest attempt of a name is more seconds ago than this, its releases are not compared."""

_LINE = re.compile(r"(\S+) (\d{1,12}) (\d{1,12}) (\d{1,15}) (\d{1,15})((?: \d{1,3}=\d{1,15})*)")


@dataclass(frozen=True)
class ReleaseFigures:
    """The attempts of one task name with one ``release``: ``attempts`` ended, ``failed`` of them failed. After 2,000 attempts
    of a shard these are about the last 1,000 to 2,000: the numbers are halved again and again.

    ``first_at`` and ``last_at`` are when the first and the last of them ended, as Unix times. ``runs`` are the run times of
    those that did not fail, by bucket as in `Distribution`.
    """

    release: str
    first_at: int
    last_at: int
    attempts: int
    failed: int
    runs: Mapping[int, int] = field(default_factory=dict, repr=False)

    @property
    def failed_share(self) -> float:
        """The part of the attempts that failed, from 0 to 1."""
        return self.failed / self.attempts if self.attempts else 0.0

    @property
    def median(self) -> float:
        """The median run time of the attempts that did not fail, in seconds, right to 9 %; 0 without any."""
        return percentiles(self.runs).p50

    @property
    def passed(self) -> int:
        """The number of the attempts that did not fail."""
        return sum(self.runs.values())


@dataclass(frozen=True)
class ReleaseComparison:
    """The tasks named ``name``: the figures of the release that runs ``now`` and of an earlier one, ``before``.

    ``before`` is the latest release that was better, or the last one if none was. ``since`` is the release after it: ``now`` or
    an earlier one that was as bad.
    """

    name: str
    before: ReleaseFigures
    since: ReleaseFigures
    now: ReleaseFigures

    @property
    def ratio(self) -> float:
        """The median run time now, divided by the one before; 1.0 unless both are known."""
        return self.now.median / self.before.median if self.now.passed and self.before.passed else 1.0

    @property
    def is_slower(self) -> bool:
        """True if the median run time is at least 1.5 times and 10 ms longer, and that is not chance."""
        return self._is_slower(1.0)

    @property
    def fails_more(self) -> bool:
        """True if at least 5 % more of the attempts fail, and that is not chance."""
        return self._fails_more(1.0)

    @property
    def is_worse(self) -> bool:
        """True if the tasks are slower or fail more."""
        return self.is_slower or self.fails_more

    @property
    def has_recovered(self) -> bool:
        """True if the difference is less than half of the smallest difference with which `is_worse` is True."""
        return not (self._is_slower(RECOVERED_PART) or self._fails_more(RECOVERED_PART))

    def _is_slower(self, part: float) -> bool:
        before, now = self.before, self.now
        if min(before.passed, now.passed) < MIN_ATTEMPTS:
            return False
        is_long = self.ratio >= 1 + part * (SLOWER_FACTOR - 1) and now.median - before.median >= part * SLOWER_SECONDS
        # Without a difference, half of the attempts run longer than the earlier median.
        error = math.sqrt(0.25 / before.passed + 0.25 / now.passed)
        return is_long and _share_above(now.runs, before.median) - 0.5 >= part * STANDARD_ERRORS * error

    def _fails_more(self, part: float) -> bool:
        before, now = self.before, self.now
        if min(before.attempts, now.attempts) < MIN_ATTEMPTS:
            return False
        # Use the larger of two standard errors: from the failed part of both releases together, and from that of each
        # release. Each of the two can be too small if a release has few attempts and no failures.
        together = (before.failed + now.failed) / (before.attempts + now.attempts)
        errors = ((together, together), (before.failed_share, now.failed_share))
        error = max(math.sqrt(_variance(p, before) + _variance(q, now)) for p, q in errors)
        return now.failed_share - before.failed_share >= part * max(FAILURE_POINTS, STANDARD_ERRORS * error)

    def __str__(self) -> str:
        def median(figures: ReleaseFigures) -> str:
            return f"{figures.median * 1000:,.0f} ms"

        at = datetime.fromtimestamp(self.since.first_at, timezone.utc)
        before, now, facts = self.before, self.now, []
        if self.is_slower:
            facts.append(f"about {self.ratio:,.1f} times slower ({median(now)}, before {median(before)})")
        if self.fails_more:
            facts.append(f"{now.failed_share:.0%} of the attempts fail (before {before.failed_share:.0%})")
        return f"{self.name}: {' and '.join(facts) or 'no worse'} since {self.since.release} ({at:%H:%M} UTC)"


def _variance(share: float, figures: ReleaseFigures) -> float:
    return share * (1 - share) / figures.attempts


def _share_above(runs: Mapping[int, int], seconds: float) -> float:
    """Return the part of the run times that are longer than a time. Half of the bucket with this time counts as longer."""
    middle = 4 * math.log2(seconds * 1e6) - 0.5
    above = sum(count * (0.5 if abs(bucket - middle) < 0.5 else bucket > middle) for bucket, count in runs.items())
    return above / sum(runs.values())


def compare_releases(shards: Shards, now: float | None = None) -> Operation[list[ReleaseComparison]]:
    """Compare the releases of each task name that ended an attempt in the last 24 hours, worse ones first."""
    (seconds, _), *records = yield from read_sound([("TIME",), *_reads(shards)])
    moment = int(seconds) if now is None else now
    found = [_compare(name, releases.values(), moment) for name, releases in _by_name(records).items()]
    comparisons = [comparison for comparison in found if comparison is not None]
    return sorted(comparisons, key=lambda one: (not one.is_worse, -one.ratio, one.name))


def read_releases(shards: Shards) -> Operation[dict[str, dict[str, ReleaseFigures]]]:
    """Return the figures by task name and release."""
    return _by_name((yield from read_sound(_reads(shards))))


def _reads(shards: Shards) -> list[tuple[Any, ...]]:
    return [("HGETALL", shard.keys(RELEASES_KEY)) for shard in shards]


def _by_name(records: Iterable[Mapping[bytes, bytes]]) -> dict[str, dict[str, ReleaseFigures]]:
    by_name: dict[str, dict[str, ReleaseFigures]] = {}
    for record in records:
        for name, text in record.items():
            releases = by_name.setdefault(name.decode("utf-8", "replace"), {})
            for figures in _parse(text):
                known = releases.get(figures.release)
                releases[figures.release] = _add_up(known, figures) if known else figures
    return by_name


def _parse(text: bytes) -> Iterable[ReleaseFigures]:
    for match in filter(None, map(_LINE.fullmatch, text.decode("utf-8", "replace").split("\n"))):
        pairs = (pair.split("=") for pair in match[6].split())
        runs = {int(bucket): int(count) for bucket, count in pairs}
        yield ReleaseFigures(unquote(match[1]), int(match[2]), int(match[3]), int(match[4]), int(match[5]), runs)


def _add_up(one: ReleaseFigures, other: ReleaseFigures) -> ReleaseFigures:
    first, last = min(one.first_at, other.first_at), max(one.last_at, other.last_at)
    runs = Counter(one.runs) + Counter(other.runs)
    return ReleaseFigures(one.release, first, last, one.attempts + other.attempts, one.failed + other.failed, runs)


def _compare(name: str, releases: Iterable[ReleaseFigures], moment: float) -> ReleaseComparison | None:
    """Compare the newest running release with the earlier releases. While it has too few attempts, compare the release
    before it.
    """
    in_order = sorted(releases, key=lambda one: one.first_at)
    latest = max((one.last_at for one in in_order), default=0)
    if latest < moment - FORGOTTEN_SECONDS:
        return None
    newest = max(index for index, one in enumerate(in_order) if one.last_at >= latest - RUNNING_SECONDS)
    enough = [one for one in in_order[: newest + 1] if one.attempts >= MIN_ATTEMPTS]
    pairs = [ReleaseComparison(name, before, since, enough[-1]) for before, since in pairwise(enough)]
    # the latest pair in which the later release is worse, otherwise the latest pair
    return max(reversed(pairs), key=lambda pair: (pair.is_worse, not pair.has_recovered), default=None)
