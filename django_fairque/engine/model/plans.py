"""Limits of users, and plans, which are named sets of limits. A plan sets the limits that the user does not have
individually.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from django_fairque.engine.model.durations import is_integer, to_us
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.model.limits import gap_of, parse_rate

MAX_LIMIT_VALUES = {"max_running": 10**6, "max_backlog": 10**9, "max_backlog_bytes": 10**15, "burst": 10**6}


def check_weight(weight: object) -> str:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0.001 <= weight <= 1000:
        raise TaskValidationError(f"weight must be a number from 0.001 to 1000, got {short(weight)}")
    return repr(float(weight))


MIN_SHARE, MAX_SHARE = 0.01, 0.9
"""The least share of one organization, and the largest sum of the guaranteed shares of a shard (``MOST`` in
lua/lib/guarantees.lua)."""


def check_share(share: object) -> str:
    if share is None:
        return ""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not MIN_SHARE <= share <= MAX_SHARE:
        raise TaskValidationError(
            f"share must be a number from {MIN_SHARE:g} to {MAX_SHARE:g}, as 0.2 for a fifth of the worker time, or None for no "
            f"guarantee, got {short(share)}"
        )
    return repr(float(share))


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
    return {"rate": tasks, "gap": gap_of(tasks, period), "burst": burst}


def plan_text(name: str, fields: Mapping[str, object]) -> str:
    """Return a plan as ``lua/lib/plans.lua`` reads it: its name, and the ``fields`` of a user's record that it sets."""
    return " ".join([name, *(f"{field}={value}" for field, value in fields.items() if value not in ("", None))])


LIMIT_FIELDS = {
    "weight": "weight",
    "cap": "max_running",
    "rate": "rate",
    "backlog": "max_backlog",
    "max_bytes": "max_backlog_bytes",
    "sla": "sla",
    "plan": "plan",
}
"""Fields of a user's record that a plan or a call sets, with the names of the methods that set them (``set_…``)."""


def plan_name(record: Mapping[bytes, bytes]) -> str | None:
    """Return the name of the plan in a user's record; None if there is none."""
    return record[b"plan"].decode(errors="replace").partition(" ")[0] if b"plan" in record else None


def explicit_limits(record: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Return the names of the limits in a user's record that no plan changes."""
    names = record.get(b"explicit", b"").decode(errors="replace").split()
    return tuple(LIMIT_FIELDS[name] for name in names if name in LIMIT_FIELDS)


PLAN_CACHE_SECONDS = 60.0
"""Seconds for which a process keeps the name of a user's plan."""
MAX_CACHED_USERS = 10_000
PLANS_MARK = "plans"
"""The last argument of a push that has plans."""

KnownPlans = dict[str, "tuple[str | None, float]"]
"""For each user, the text of the plan (empty without a plan, None if it is unknown), and the moment at which it was
looked up."""


@dataclass(eq=False)
class Plans:
    """The plans of a project, as texts by their names, and the plans of its users as far as they were looked up lately."""

    texts: Mapping[str, str]
    """The texts of the plans by name."""
    find_version: Callable[[], str]
    """Returns the version of the code that declares the plans."""
    find: Callable[[str], str | None] | None = None
    """Returns the text of a user's plan, empty without a plan; None if that is unknown."""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    """Runs a function in a thread that may use the project's database, for coroutines."""
    _known: OrderedDict[str, tuple[str | None, float]] = field(default_factory=OrderedDict)

    @cached_property
    def version(self) -> str:
        """The version of the code that declares the plans."""
        return self.find_version()

    def get_text(self, name: str) -> str:
        """Return the text of the plan ``name``. Raises `TaskValidationError` if there is none."""
        if not isinstance(name, str) or name not in self.texts:
            hint = suggestion(name, self.texts) if isinstance(name, str) else "expected a name, or None"
            raise TaskValidationError(f"there is no plan {short(name)} in the setting PLANS; {hint}")
        return self.texts[name]

    def get_known(self, user_ids: Iterable[str]) -> KnownPlans:
        """Return the plans of the ``user_ids`` that were looked up in the last minute."""
        since = monotonic() - PLAN_CACHE_SECONDS
        found = ((user_id, self._known.get(user_id)) for user_id in user_ids)
        return {user_id: entry for user_id, entry in found if entry is not None and entry[1] > since}

    def look_up(self, user_ids: Sequence[str]) -> KnownPlans:
        """Return the plans of the ``user_ids``, for each of which the project's function is called."""
        found: KnownPlans = {}
        for user_id in user_ids:
            at = monotonic()  # the time before the look-up, because the plan may change during it
            found[user_id] = entry = (self.find(user_id) if self.find else "", at)
            self._known.pop(user_id, None)
            self._known[user_id] = entry
            if len(self._known) > MAX_CACHED_USERS:
                self._known.popitem(last=False)
        return found

    def to_args(self, found: KnownPlans) -> list[Any]:
        """Return the plans that were ``found`` as the last arguments of ``push.lua``; nothing if no plan is known."""
        now = monotonic()
        args = [(user_id, text, to_us(now - at)) for user_id, (text, at) in found.items() if text is not None]
        return [*(part for entry in args for part in entry), self.version, len(args), PLANS_MARK] if args else []
