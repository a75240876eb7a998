"""Checks and conversions of moments and lengths of time. Callers pass seconds; the scripts use whole microseconds."""

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
"""The latest moment, in the year 2248: scores of sorted sets hold whole microseconds exactly until then."""
LATEST_DATE_TEXT = f"{datetime.fromtimestamp(LATEST_TIME, timezone.utc):%Y-%m-%d}"


MAX_EXACT_INTEGER = 2**53
"""The largest whole number up to which scripts and scores are exact."""
JITTER = random.SystemRandom()
"""Random numbers for pauses. The state of the module `random`, which a task may have seeded, stays as it is."""


def is_integer(value: object, least: int, most: float = math.inf) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_integer(value: object, what: str, least: int, most: int | None = None) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``; else raise `TaskValidationError`."""
    if is_integer(value, least, MAX_EXACT_INTEGER if most is None else most):
        return value
    to = "" if most is None else f" to {most}"
    raise TaskValidationError(f"{what} must be a whole number from {least}{to}, got {short(value)}")


def to_us(moment: float) -> int:
    """Return a number of seconds as whole microseconds, the scripts' unit."""
    return round(moment * 1_000_000)


def round_seconds(seconds: float) -> float:
    """Return ``seconds`` rounded to whole microseconds. The server returns such a value unchanged."""
    return round(seconds * 1_000_000) / 1_000_000


def seconds(us: bytes | int | str | None) -> float | None:
    """Return a script's microseconds as seconds; None for an empty field."""
    try:
        return int(us) / 1_000_000 if us else None
    except OverflowError:
        raise ValueError(f"a length of time has at most 16 digits, got one of {len(str(us))} characters") from None


def number(text: bytes | None, default: float = 0.0) -> float:
    """Return the number in a field of a record, or ``default`` if the field is missing or damaged."""
    try:
        found = float(text or default)
    except ValueError:
        return default
    return found if abs(found) < 1e24 else default


def duration(value: float | timedelta, what: str) -> float:
    """Return a length of time in seconds. ``value`` is a number or a timedelta, not negative, at most ten years."""
    return duration_us(value, what) / 1_000_000


def duration_us(value: float | timedelta, what: str) -> int:
    """Return a length of time in microseconds; ``value`` is that of `duration`."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= MAX_DURATION_SECONDS:
        raise TaskValidationError(
            f"{what} must be a number of seconds from 0 to {MAX_DURATION_SECONDS:.0f}, got {short(value)}"
        )
    return to_us(number)


def positive_us(value: float | timedelta, what: str) -> int:
    """Return a length of time in microseconds, at least 1; ``value`` is that of `duration`."""
    us = duration_us(value, what)
    if not us:
        raise TaskValidationError(f"{what} must be more than 0 seconds, got {short(value)}")
    return us


def now_us(value: float) -> int:
    """Return a caller's ``now`` in microseconds. The engine's time is the largest ``now`` that was passed so far."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < LATEST_TIME:
        raise TaskValidationError(f"now must be seconds since the epoch, got {short(value)}")
    return to_us(value)


def moment(value: float | datetime | timedelta | None, what: str) -> float | None:
    """Return a moment as seconds since the epoch. ``value`` is a number, an aware datetime, or a timedelta from now."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return round_seconds(time.time() + duration(value, what))
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
    return round_seconds(number)


def moment_or_span(
    at: float | datetime | timedelta | None, span: float | timedelta | None, at_name: str, span_name: str
) -> tuple[float | None, float | None]:
    """Check two options of which only one may be given: a moment, or a length of time after the server accepts the task.

    Returns the moment and the length of time; one of them is None. A timedelta in place of the moment is a length of time.
    """
    if at is not None and span is not None:
        raise TaskValidationError(f"{span_name} and {at_name} say the same thing in two ways: give one of them")
    if isinstance(at, timedelta):
        at, span, span_name = None, at, at_name
    return moment(at, at_name), None if span is None else duration(span, span_name)


def retry_delay(retry_count: int, *, base: float = 1.0, cap: float = 3600.0, jitter: float = 0.0) -> float:
    """Return ``base × 2^retry_count`` seconds (1, 2, 4, 8 … for a base of 1), at most ``cap``.

    ``jitter`` is the fraction by which the delay may be lengthened at random, so that tasks that failed together are not
    all retried at the same moment.
    """
    delay: float = min(cap, base * 2.0 ** min(retry_count, 63))
    return delay * (1 + JITTER.random() * jitter)
