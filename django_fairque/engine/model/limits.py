"""Limits of users: their values, and how the fields of a user's record have them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from django_fairque.engine.model.durations import is_integer
from django_fairque.engine.model.errors import TaskValidationError, short

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"^\s*(\d{1,9})\s*/\s*(\d{0,6})\s*([smhd])[a-z]*\s*$")
MAX_LIMIT_VALUES = {"max_running": 10**6, "max_backlog": 10**9, "max_backlog_bytes": 10**15, "burst": 10**6}


def parse_rate(rate: str | None) -> tuple[int, int] | None:
    """``"100/m"`` (or ``"5/10s"``) as (tasks, seconds); None for no limit."""
    if rate is None:
        return None
    match = _RATE.match(rate) if isinstance(rate, str) else None
    if not match or int(match[1]) < 1 or (match[2] and int(match[2]) < 1):
        raise TaskValidationError(
            f"a rate is written 'tasks/unit' with unit s, m, h or d, such as '100/m'; got {short(rate)}"
        )
    return int(match[1]), int(match[2] or 1) * _UNITS[match[3]]


def check_weight(weight: object) -> str:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.001 <= weight <= 1000:
        raise TaskValidationError(f"weight must be a number from 0.001 to 1000, got {short(weight)}")
    return repr(float(weight))


def check_limit_value(what: str, value: object) -> object:
    """Return ``value`` if the limit ``what`` may have it; None stands for no limit."""
    top = MAX_LIMIT_VALUES[what]
    if value is not None and not is_integer(value, 1, top):
        raise TaskValidationError(
            f"{what} must be an integer from 1 to {top}, or None for no limit, got {short(value)}"
        )
    return "" if value is None else value


def rate_fields(rate: str | None, burst: int) -> dict[str, object]:
    parsed, top = parse_rate(rate), MAX_LIMIT_VALUES["burst"]
    if not is_integer(burst, 1, top):
        raise TaskValidationError(f"burst must be an integer from 1 to {top}, got {short(burst)}")
    if parsed is None:
        return {"rate": "", "gap": "", "burst": ""}
    tasks, period = parsed
    gap = -(-period * 1_000_000 // tasks)  # rounded up: no window has more than the rate and the burst
    return {"rate": tasks, "gap": gap, "burst": burst}


def plan_text(name: str, fields: Mapping[str, object]) -> str:
    """Return a plan as ``lua/lib/plans.lua`` reads it: its name, and the ``fields`` of a user's record that it sets."""
    return " ".join([name, *(f"{field}={value}" for field, value in fields.items() if value not in ("", None))])
