"""The figures of a user by hour and by day (``lua/lib/user_periods.lua``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import check_integer, now_us
from django_fairque.engine.scripting.operations import Operation, read_sound, users_record
from django_fairque.engine.statistics.queue_stats import (
    HOUR_MICROSECONDS,
    WAIT_BUCKETS,
    Percentiles,
    percentiles,
    wait_bucket_middle,
)

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands, Keys

USER_HOURS = 48
USER_DAYS = 35
_COUNTERS = ("finished", "failed", "dead", "sla_kept", "sla_missed")
_Counts = tuple[int, ...]
"""The numbers of `_COUNTERS`, then waits by bucket."""
_NOTHING: _Counts = (0,) * (len(_COUNTERS) + WAIT_BUCKETS)
_NUMBERS = rb"((?:[0-9]{1,15}(?: [0-9]{1,15})*)?)"
_PLACE = re.compile(rb"([0-9]{1,9}) " + _NUMBERS)


@dataclass(frozen=True)
class UserPeriod:
    """The activity of one user in the ``seconds`` from ``begin`` (Unix time) on. The latest period has not ended.

    These are numbers: ``finished`` tasks, ``failed`` attempts (also of processes that crashed, and of leases that ended),
    ``dead`` (new dead letters), and tasks whose first start was within their SLA (``sla_kept``) or not (``sla_missed``, also
    tasks that expired or were canceled after their deadline). ``wait`` are percentiles of the waits of all attempts, right to
    a factor of 1.8. An attempt counts when it ends.
    """

    begin: int
    seconds: int
    finished: int = 0
    failed: int = 0
    dead: int = 0
    sla_kept: int = 0
    sla_missed: int = 0
    wait: Percentiles = field(default_factory=Percentiles)
    waits: Mapping[int, int] = field(default_factory=dict, repr=False)
    """The numbers of waits by bucket, from which ``wait`` follows."""


@dataclass(frozen=True)
class UserHistory:
    """The latest ``hours`` and ``days`` (in UTC) of a user, the oldest first; also those without activity."""

    hours: list[UserPeriod]
    days: list[UserPeriod]


def add_up_periods(periods: Iterable[UserPeriod]) -> UserPeriod:
    """Return the sums of some periods, from the beginning of the first one; at least one period is needed."""
    some = list(periods)
    waits = (sum(period.waits.get(bucket, 0) for period in some) for bucket in range(WAIT_BUCKETS))
    counts = (*(sum(getattr(period, name) for period in some) for name in _COUNTERS), *waits)
    return _period(min(period.begin for period in some), sum(period.seconds for period in some), counts)


def history(commands: Commands, user_id: str, hours: int, days: int, now: float | None) -> Operation[UserHistory]:
    """Read the last hours (1 to 48) and days (1 to 35) of a user, in one round trip."""
    check_integer(hours, "hours", 1, USER_HOURS)
    check_integer(days, "days", 1, USER_DAYS)
    time, text, stored = yield from read_sound(
        [("TIME",), ("GET", commands.keys.user(user_id)), ("HGETALL", commands.keys.periods(user_id))]
    )
    record = users_record(text)
    by_hour, by_day = (
        _by_number(record, (value for name, value in stored.items() if name.startswith(kind)), is_day=kind == b"d")
        for kind in (b"h", b"d")
    )
    hour = (now_us(now) if now is not None else int(time[0]) * 1_000_000) // HOUR_MICROSECONDS
    hour = max(hour, int(record.get(b"period", 0)))  # use the later time, because the engine's time never goes back
    return UserHistory(_periods(by_hour, hour, hours, 3600), _periods(by_day, hour // 24, days, 86_400))


def sums(
    keys: Keys, user_ids: Sequence[str], first: int, last: int, *, is_day: bool
) -> Operation[list[tuple[UserPeriod, Mapping[bytes, bytes]]]]:
    """Return the sums of the hours or days with these numbers (since 1970), and the record of each user, in one round trip."""
    kind, places, seconds = ("d", USER_DAYS, 86_400) if is_day else ("h", USER_HOURS, 3600)
    fields = [f"{kind}{number % places}" for number in range(first, last + 1)]
    reads = [read for user in user_ids for read in (("GET", keys.user(user)), ("HMGET", keys.periods(user), *fields))]
    replies = yield from read_sound(reads)
    found: list[tuple[UserPeriod, Mapping[bytes, bytes]]] = []
    for text, values in zip(replies[::2], replies[1::2], strict=True):
        record = users_record(text)
        counts = _by_number(record, values, is_day=is_day)
        wanted = (counts.get(number, _NOTHING) for number in range(first, last + 1))
        total = tuple(map(sum, zip(*wanted, strict=True)))
        found.append((_period(first * seconds, (last + 1 - first) * seconds, total), record))
    return found


def _by_number(record: Mapping[bytes, bytes], stored: Iterable[bytes | None], *, is_day: bool) -> dict[int, _Counts]:
    """Return the counts by the number of the hour or day. The counts of the current hour and day are in the user's
    record.
    """
    matches = (_PLACE.fullmatch(value) for value in stored if value is not None)
    found = {int(match[1]): _read_counts(match[2]) for match in matches if match}
    if b"period" in record:
        number, counts = int(record[b"period"]), _fields(record, "ended")
        if is_day:
            number, counts = number // 24, tuple(map(sum, zip(counts, _fields(record, "before"), strict=True)))
        found[number] = counts
    return found


def _fields(record: Mapping[bytes, bytes], name: str) -> _Counts:
    return tuple(int(record.get(f"{name}:{index}".encode(), 0)) for index in range(len(_NOTHING)))


def _read_counts(text: bytes) -> _Counts:
    counts = tuple(int(number) for number in text.split()[: len(_NOTHING)])
    return counts + _NOTHING[len(counts) :]


def _periods(counts: Mapping[int, _Counts], last: int, number: int, seconds: int) -> list[UserPeriod]:
    return [
        _period(index * seconds, seconds, counts.get(index, _NOTHING)) for index in range(last - number + 1, last + 1)
    ]


def _period(begin: int, seconds: int, counts: _Counts) -> UserPeriod:
    first = len(_COUNTERS)
    waits = {bucket: count for bucket, count in enumerate(counts[first:]) if count}
    figures = dict(zip(_COUNTERS, counts[:first], strict=True))
    return UserPeriod(begin, seconds, **figures, wait=percentiles(waits, wait_bucket_middle), waits=waits)
