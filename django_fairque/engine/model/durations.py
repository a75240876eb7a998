"""Moments and lengths of time: what callers may give, and the scripts' unit, whole microseconds."""

from __future__ import annotations

import math
import random
import time
from datetime import datetime, timedelta, timezone
from typing import TypeGuard

from django_fairque.engine.model.errors import TaskValidationError, short

MAX_DURATION_SECONDS = 10 * 365 * 86_400.0
"""Ten years: a longer delay, window or timeout is a mistake in units (seconds)."""
LATEST_TIME = 2**43 / 1000
"""No moment is later (in the year 2248): scores of sorted sets hold whole microseconds until then."""
LATEST_DATE_TEXT = f"{datetime.fromtimestamp(LATEST_TIME, timezone.utc):%Y-%m-%d}"


MAX_EXACT_INTEGER = 2**53
"""Scripts and scores hold whole numbers exactly up to this one."""


def is_integer(value: object, least: int, most: float = math.inf) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_integer(value: object, what: str, least: int, most: int | None = None) -> int:
    """A number of things, as a caller gave it; raises `TaskValidationError` for any other."""
    if is_integer(value, least, MAX_EXACT_INTEGER if most is None else most):
        return value
    to = "" if most is None else f" to {most}"
    raise TaskValidationError(f"{what} must be a whole number from {least}{to}, got {short(value)}")


def to_us(moment: float) -> int:
    """Seconds as the scripts' unit, whole microseconds."""
    return round(moment * 1_000_000)


def rounded(seconds: float) -> float:
    """The same in seconds, without what is finer than the scripts' unit: it comes back from the server as it went."""
    return round(seconds * 1_000_000) / 1_000_000


def seconds(us: bytes | int | str | None) -> float | None:
    """A script's microseconds in seconds; None for a field that is empty."""
    try:
        return int(us) / 1_000_000 if us else None
    except OverflowError:
        raise ValueError(f"a length of time has at most 16 digits, got one of {len(str(us))} characters") from None


def number(text: bytes | None, default: float = 0.0) -> float:
    """A number in a record; the default for a field that is missing or damaged."""
    try:
        found = float(text or default)
    except ValueError:
        return default
    return found if abs(found) < 1e24 else default


def duration(value: float | timedelta, what: str) -> float:
    """A length of time in seconds: a number or a timedelta, not negative, at most ten years."""
    return duration_us(value, what) / 1_000_000


def duration_us(value: float | timedelta, what: str) -> int:
    """The same in the scripts' unit."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= MAX_DURATION_SECONDS:
        raise TaskValidationError(
            f"{what} must be a number of seconds from 0 to {MAX_DURATION_SECONDS:.0f}, got {short(value)}"
        )
    return to_us(number)


def positive_us(value: float | timedelta, what: str) -> int:
    """As `duration_us`, of at least a microsecond."""
    us = duration_us(value, what)
    if not us:
        raise TaskValidationError(f"{what} must be more than 0 seconds, got {short(value)}")
    return us


def now_us(value: float) -> int:
    """The moment that a caller passes in as now, in the scripts' unit: the engine's time is the largest that was passed in."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LATEST_TIME:
        raise TaskValidationError(f"now must be seconds since the epoch, got {short(value)}")
    return to_us(value)


def moment(value: float | datetime | timedelta | None, what: str) -> float | None:
    """A moment as seconds since the epoch: a number, an aware datetime, or a timedelta from now."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return rounded(time.time() + duration(value, what))
    number: object = value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TaskValidationError(
                f"{what} must be an aware datetime, got the naive {short(value)}; add a time zone"
            )
        number = value.timestamp()
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TaskValidationError(
            f"{what} must be seconds since the epoch, an aware datetime or a timedelta, got {short(value)}"
        )
    if not 0 <= number < LATEST_TIME:
        raise TaskValidationError(
            f"{what} must be a moment from 1970-01-01 to {LATEST_DATE_TEXT} (seconds since the epoch, an aware datetime or a "
            f"timedelta), got {short(value)}"
        )
    return rounded(number)


def moment_or_span(
    at: float | datetime | timedelta | None, span: float | timedelta | None, at_name: str, span_name: str
) -> tuple[float | None, float | None]:
    """Two options for one time: a moment, and seconds that the server counts from when it accepts the task. A timedelta in place
    of the moment is such a length of time."""
    if at is not None and span is not None:
        raise TaskValidationError(f"{span_name} and {at_name} say the same thing in two ways: give one of them")
    if isinstance(at, timedelta):
        at, span, span_name = None, at, at_name
    return moment(at, at_name), None if span is None else duration(span, span_name)


def retry_delay(retry_count: int, *, base: float = 1.0, cap: float = 3600.0, jitter: float = 0.0) -> float:
    """``base × 2^retry_count`` seconds (1, 2, 4, 8 … for a base of 1), at most ``cap``.

    ``jitter`` is the fraction by which it may be lengthened at random, so that tasks that failed together don't
    come back together.
    """
    delay: float = min(cap, base * 2.0 ** min(retry_count, 63))
    return delay * (1 + random.random() * jitter)  # noqa: S311 - spreads retries, hides nothing
