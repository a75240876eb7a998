"""When a schedule is due: cron expressions in a time zone, and intervals.

Cron is read as Debian's cron does, by the cronsim library: if a night skips an hour, jobs with fixed times in that hour
run right after it; if a night repeats an hour, such jobs run once; jobs of every minute or hour follow real time.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import groupby, takewhile

from cronsim import CronSim, CronSimError

from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import TaskValidationError, nearest, short

MIN_INTERVAL_SECONDS = 1.0
MAX_COUNTED_RUNS = 1000
CHANGE_MARGIN_SECONDS = 4 * 3600
"""Seconds before and after a change of a zone's offset to UTC in which the library decides which run times are left out
or moved.
"""
FIELDS = 5
"""The number of fields of a cron expression."""
_SPANS = (3600.0, 86_400.0, 40 * 86_400.0, 400 * 86_400.0, 9 * 366 * 86_400.0)
"""Periods, in seconds before a moment, in which to search for the last run time. The first period that contains one
ends the search.
"""


ABBREVIATION = re.compile(r"[A-Za-z]{3,5}")
"""The form of abbreviations such as CEST, AEST, BST and IST. The zone with the most similar name is often on another
continent."""
MAX_ZONE_CHARACTERS = 100
"""The largest number of characters of a time zone's name; the longest known name has 32."""


FIELD_RANGES = (("minute", 60), ("hour", 24), ("day-of-month", 31), ("month", 12), ("day-of-week", 7))
"""The fields of a cron expression, each with the number of its values."""


def find_long_step(cron: str) -> str:
    """Return a sentence about the first step in a cron expression that is longer than its field, as in ``*/90 * * * *``; empty
    if there is none.
    """
    for (name, size), field in zip(FIELD_RANGES, cron.split(), strict=False):
        for step in map(int, re.findall(r"/([0-9]{1,9})", field)):
            if step > size:
                return (
                    f"the {name} field {field} has a step of {step}, but only {size} values: counting begins again with each "
                    f"round, so the step never leads to a second value"
                )
    return ""


@dataclass(frozen=True)
class Timing:
    """When a schedule is due: ``cron`` in ``zone``, or every ``every`` seconds from ``start`` on, as Unix time."""

    cron: str | None
    every: float | None
    zone: str
    start: float

    @classmethod
    def create(cls, cron: str | None, every: float | None, zone: str, start: float) -> Timing:
        """Return the checked timing of ``cron`` in ``zone``, or of ``every`` seconds from ``start`` on; give one of
        the two.

        Raises `TaskValidationError` if it can't be understood, and for a cron expression that never fires.
        """
        if (cron is None) == (every is None):
            raise TaskValidationError("a schedule needs either cron or every: give one of the two")
        is_number = isinstance(every, (int, float)) and not isinstance(every, bool)
        if every is not None and not (is_number and MIN_INTERVAL_SECONDS <= every <= 10 * 366 * 86_400):
            raise TaskValidationError(f"every must be a number of seconds from 1 to ten years, got {short(every)}")
        if cron is not None and not isinstance(cron, str):
            raise TaskValidationError(f"cron must be a string of five fields such as '0 4 * * *', got {short(cron)}")
        if cron is not None and (count := len(cron.split())) != FIELDS:
            # The library would read a sixth field as seconds, and fire each second although each minute was meant.
            raise TaskValidationError(
                f"the cron expression {short(cron)} has {count} {'field' if count == 1 else 'fields'}; expected five fields, "
                "minute hour day-of-month month day-of-week, such as '*/5 * * * *'"
            )
        timing = cls(cron, None if every is None else float(every), zone, start)
        find_zone(zone)
        if cron is not None and timing.find_next_run(start) is None:
            raise TaskValidationError(f"the cron expression {short(cron)} never fires: no such moment within 50 years")
        return timing

    def find_next_run(self, moment: float) -> float | None:
        """Return the first run time after ``moment``, as Unix times; None if there is none within 50 years."""
        if self.every is not None:
            passed = (to_us(moment) - to_us(self.start)) // to_us(self.every)
            return (to_us(self.start) + (max(passed, 0) + (passed >= 0)) * to_us(self.every)) / 1_000_000
        return next(self._iterate_run_times(moment), None)

    def count_runs(self, first: float, last: float) -> int:
        """Return the number of run times from ``first`` to ``last``, both included, as Unix times; at most 1,000."""
        count = 1
        while first < last and count < MAX_COUNTED_RUNS:
            first = self.find_next_run(first) or last
            count += 1
        return count

    def find_last_run(self, moment: float, first: float) -> float:
        """Return the last run time at or before ``moment``, as Unix times; ``first`` is a known run time."""
        if self.every is not None:
            steps = (to_us(moment) - to_us(first)) // to_us(self.every)
            return (to_us(first) + steps * to_us(self.every)) / 1_000_000
        for span in _SPANS:
            run_times = takewhile(
                lambda run_time: run_time <= moment, self._iterate_run_times(max(first - 1, moment - span))
            )
            if last := deque(run_times, maxlen=1):
                return last[0]
        return first

    def list_cron_runs(self, first: float, last: float) -> list[float]:
        """Return the run times of the cron expression after ``first`` and up to ``last``, as Unix times.

        Takes about a millisecond for 1,440 of them; `find_next_run` takes some 50 µs for each.
        """
        found: list[float] = []
        zone = find_zone(self.zone)
        for begin, end, offset in _steady_periods(zone, first, last):
            if offset is None:
                found += takewhile(lambda run_time, end=end: run_time <= end, self._iterate_run_times(begin))  # type: ignore[misc]
            else:
                found += _expand(self.cron or "", offset, begin, end)
        return found

    def _iterate_run_times(self, moment: float) -> Iterator[float]:
        """Yield the run times of the cron expression after ``moment``."""
        start = datetime.fromtimestamp(moment, timezone.utc).astimezone(find_zone(self.zone))
        try:
            for run_time in CronSim(self.cron or "", start):
                if run_time.timestamp() > moment:
                    yield run_time.timestamp()
        except CronSimError as error:
            raise _cron_error(self.cron or "", error) from None


def _cron_error(cron: str, error: CronSimError) -> TaskValidationError:
    if _is_of_no_month(cron):
        return TaskValidationError(f"the cron expression {short(cron)} never fires: no month it names has such a day")
    return TaskValidationError(
        f"the cron expression {short(cron)} can't be understood: {str(error)[:200]}; expected five fields, minute "
        f"hour day-of-month month day-of-week, such as '*/5 * * * *'"
    )


@lru_cache(maxsize=100)
def _steady_periods(zone: zoneinfo.ZoneInfo, first: float, last: float) -> list[tuple[float, float, int | None]]:
    """Return successive periods, each with the zone's offset to UTC in seconds; None near a change of the offset."""
    margin = CHANGE_MARGIN_SECONDS // 3600
    hours = math.ceil((last - first) / 3600)
    offsets = [_offset(zone, first + hour * 3600) for hour in range(-margin, hours + margin + 1)]
    around = [set(offsets[hour : hour + 2 * margin + 2]) for hour in range(hours)]
    found: list[tuple[float, float, int | None]] = []
    for offset, group in groupby(enumerate(around), key=lambda pair: min(pair[1]) if len(pair[1]) == 1 else None):
        begin = found[-1][1] if found else first
        found.append((begin, min(begin + 3600 * len(list(group)), last), offset))
    return found


def _offset(zone: zoneinfo.ZoneInfo, moment: float) -> int:
    return int((datetime.fromtimestamp(moment, zone).utcoffset() or timedelta()).total_seconds())


@lru_cache(maxsize=1000)
def _parse(cron: str) -> CronSim:
    try:
        return CronSim(cron, datetime(2000, 1, 1, tzinfo=timezone.utc))
    except CronSimError as error:
        raise _cron_error(cron, error) from None


def _expand(cron: str, offset: int, first: float, last: float) -> list[float]:
    """Return the run times after ``first`` and up to ``last`` while the zone is ``offset`` seconds ahead of UTC."""
    fields = _parse(cron)
    seconds = [minute * 60 for minute in sorted(fields.minutes)]
    hour = int(first + offset) // 3600 * 3600 - offset
    found: list[float] = []
    while hour <= last:
        local = datetime(1970, 1, 1) + timedelta(seconds=hour + offset)  # noqa: DTZ001 - in the schedule's zone
        if local.hour in fields.hours and local.month in fields.months and fields.match_day(local.date()):
            found += [float(hour + second) for second in seconds]
        hour += 3600
    return found[bisect_right(found, first) : bisect_right(found, last)]


def _is_of_no_month(cron: str) -> bool:
    """Return whether the expression is refused only because its months have no such day, as with 30 February."""
    fields = cron.split()
    try:
        CronSim(" ".join([*fields[:3], "*", *fields[4:]]), datetime.now(timezone.utc))
        CronSim(" ".join(["*", "*", "*", *fields[3:]]), datetime.now(timezone.utc))
    except CronSimError:
        return False
    return True


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """Return the time zone of that name. Raises `TaskValidationError`, which names the most similar known zone."""
    with suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        if isinstance(name, str) and len(name) <= MAX_ZONE_CHARACTERS:
            return zoneinfo.ZoneInfo(name)
    if not (known := zoneinfo.available_timezones()):
        raise TaskValidationError(f"no time zones are installed here, so {short(name)} is not known; install tzdata")
    if isinstance(name, str) and ABBREVIATION.fullmatch(name) and name.lower() not in map(str.lower, known):
        hint = ", an abbreviation, which several zones can have: give the zone of a city, such as Europe/Berlin, or UTC"
    else:
        near = nearest(name, known) if isinstance(name, str) else ""
        hint = f"; did you mean {near}?" if near else ", such as Europe/Berlin or UTC"
    raise TaskValidationError(f"timezone must be the name of a time zone, got {short(name)}{hint}")
