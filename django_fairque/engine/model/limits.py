"""The limits of tasks by key: how many tasks of a key run at once, and how many start in a period (``lua/lib/limits.lua``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Union, get_args

from django_fairque.engine.model.durations import duration_us, is_integer, moment, to_us
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.payload import pack, unpack

AtLimit = Literal["wait", "skip", "newest"]
AT_LIMIT_VALUES: tuple[AtLimit, ...] = get_args(AtLimit)
MAX_LIMITS = 4
"""The largest number of limits of a task."""
MAX_GAP_MICROSECONDS = 10**15
"""The longest time between two tasks of a rate: some 30 years."""
MAX_AT_ONCE = 1_000_000
"""The largest number of tasks of a key that run at once, and the largest burst of a rate."""
ClosingEnd = Union[float, timedelta, datetime, None]  # noqa: UP007 - evaluated on 3.10 too
"""The moment at which a closed limit opens: seconds from now, a timedelta, an aware datetime, or None for no end."""

_RATE = re.compile(r"^\s*(\d{1,9})\s*/\s*(\d{0,6})\s*([smhd])[a-z]*\s*$")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OF_USER = b"u"
_AT_LIMIT_FLAGS: dict[AtLimit, bytes] = {"wait": b"", "skip": b"s", "newest": b"n"}


class TaskLimit(NamedTuple):
    """A limit of one task. All tasks with limits of the same key share one limit."""

    key: str
    """The key, without placeholders: from 1 to 256 bytes."""
    at_once: int | None = None
    """The largest number of tasks of the key that run at once; None for any number."""
    gap: int | None = None
    """The microseconds between the starts of two tasks of the key, on average; None for no rate."""
    burst: int = 1
    """The number of tasks that may start at once under the rate."""
    is_of_user: bool = False
    """Whether each user has a separate limit under this key."""
    at_limit: AtLimit = "wait"
    """The reaction to a limit that is reached: the task waits, or is refused (``"skip"``), or replaces the tasks of all users
    that wait for the key (``"newest"``)."""

    @property
    def rate(self) -> str | None:
        """The rate, as people write it; None if there is none."""
        return None if self.gap is None else write_rate(self.gap)


def limit_id_of(key: str, user_id: str | None = None) -> str:
    """Return the server's id of a limit: of a shared limit, or of a user's separate limit under this key."""
    return f"s:{key}" if user_id is None else f"u:{len(user_id.encode())}:{user_id}:{key}"


def divide_limits(limits: Sequence[TaskLimit], shard: int, shards: int) -> tuple[TaskLimit, ...]:
    """Return the limits of a task for one of several shards, with that shard's part of each shared limit.

    Users are spread over the shards, and each shard counts its own tasks. A part is at least one task.
    """
    return tuple(
        limit
        if limit.is_of_user
        else limit._replace(
            at_once=limit.at_once and max(1, (limit.at_once + shards - 1 - shard) // shards),
            gap=limit.gap and limit.gap * shards,
            burst=max(1, (limit.burst + shards - 1 - shard) // shards),
        )
        for limit in limits
    )


def parse_rate(rate: str | None) -> tuple[int, int] | None:
    """Return a rate such as ``"100/m"`` or ``"5/10s"`` as (tasks, seconds); None for no limit."""
    if rate is None:
        return None
    match = _RATE.match(rate) if isinstance(rate, str) else None
    if not match or int(match[1]) < 1 or (match[2] and int(match[2]) < 1):
        raise TaskValidationError(
            f"a rate is written 'tasks/unit' with unit s, m, h or d, such as '100/m'; got {short(rate)}"
        )
    return int(match[1]), int(match[2] or 1) * _UNITS[match[3]]


def gap_of(tasks: int, seconds: int) -> int:
    """Return the microseconds between two tasks of a rate, rounded up: no period has more than the rate and the burst."""
    return -(-seconds * 1_000_000 // tasks)


def write_rate(gap: int) -> str:
    """Return the rate with this gap (us) between two starts, as people write it: ``100/s``, ``30/m``, or ``1/7s``."""
    for unit, seconds in _UNITS.items():
        fewest = seconds * 1_000_000 // gap
        for tasks in (fewest, fewest + 1):
            if tasks and gap_of(tasks, seconds) == gap:
                return f"{tasks}/{unit}"
    return f"1/{gap / 1_000_000:.6g}s"


def encode_end(until: ClosingEnd) -> int | str:
    """Return the moment at which a closed limit opens, as the server reads it: a moment, or a length of time as a
    negative number (us)."""
    if until is None:
        return ""
    if isinstance(until, str):
        raise TaskValidationError(
            f"until must be a number of seconds, a timedelta or an aware datetime, got the text {short(until)}; convert a "
            "header such as Retry-After with float()"
        )
    if isinstance(until, datetime):
        return max(1, to_us(moment(until, "until") or 0.0))
    return -max(1, duration_us(until, "until"))  # the server adds this length of time to its own time


def check_limits(value: Any, name: str) -> tuple[TaskLimit, ...]:
    """Return the limits of a task, which may be lists (from JSON). Raises `TaskValidationError` for another value, or more than
    `MAX_LIMITS`.
    """
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
    is_list = found is not None and all(
        isinstance(limit, list) and len(limit) == len(TaskLimit._fields) for limit in found
    )
    found = tuple(TaskLimit(*limit) for limit in found) if found and is_list else found
    if found is None or not all(isinstance(limit, TaskLimit) for limit in found):
        raise TaskValidationError(f"{name} must be a sequence of TaskLimit, got {short(value)}")
    if len(found) > MAX_LIMITS:
        raise TaskValidationError(f"{name} may have at most {MAX_LIMITS} limits, got {len(found)}")
    for limit in found:
        check_id(limit.key, "the key of a limit")
        for part, number, most in (
            ("at_once", limit.at_once, MAX_AT_ONCE),
            ("gap", limit.gap, MAX_GAP_MICROSECONDS),
            ("burst", limit.burst, MAX_AT_ONCE),
        ):
            if number is not None and not is_integer(number, 1, most):
                raise TaskValidationError(
                    f"{part} of limit {limit.key!r} must be an integer from 1 to {most}, got {short(number)}"
                )
        if limit.at_limit not in AT_LIMIT_VALUES:
            raise TaskValidationError(
                f"at_limit of limit {limit.key!r} must be one of {', '.join(AT_LIMIT_VALUES)}, got {short(limit.at_limit)}"
            )
    return found


def describe_skipping(limits: Iterable[TaskLimit]) -> str:
    """Return the keys of the limits at which a task does not wait, for an error."""
    keys = list(dict.fromkeys(limit.key for limit in limits if limit.at_limit == "skip"))
    return ", ".join(f"limit {key!r}" for key in keys[:3]) + (", …" if len(keys) > 3 else "")


def encode_limits(limits: Sequence[TaskLimit]) -> bytes:
    """Return the form of a task's limits in its record and in pushes; empty without limits."""
    parts: list[str | int | bytes] = []
    for limit in limits:
        flags = (_OF_USER if limit.is_of_user else b"") + _AT_LIMIT_FLAGS[limit.at_limit]
        rate = ("", "") if limit.gap is None else (limit.gap, limit.burst)
        parts += [limit.key, "" if limit.at_once is None else limit.at_once, *rate, flags]
    return pack(parts) if parts else b""


def decode_limits(form: bytes) -> tuple[TaskLimit, ...]:
    """Return the limits in a form of `encode_limits`. Raises `ValueError` for other bytes."""
    parts = unpack(form)
    found = []
    for key, at_once, gap, burst, flags in zip(*[iter(parts)] * 5, strict=True):
        at_limit: AtLimit = next((name for name, flag in _AT_LIMIT_FLAGS.items() if flag and flag in flags), "wait")
        numbers = int(at_once) if at_once else None, int(gap) if gap else None, int(burst or 1)
        found.append(TaskLimit(key.decode(), *numbers, _OF_USER in flags, at_limit))
    return tuple(found)
