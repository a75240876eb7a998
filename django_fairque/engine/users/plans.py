"""Plans: named limits of users, which come with the users' tasks. The engine writes them if the user's record has others.

An empty server has the limits again at a user's first task, and a changed plan takes effect at the user's next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.scripting.operations import Evaluate, Operation

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands

PLAN_CACHE_SECONDS = 60.0
"""Seconds for which a process keeps the name of a user's plan."""
MAX_CACHED_USERS = 10_000
PLANS_MARK = "plans"
"""The last argument of a push that has plans."""
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
    """Return the name of the plan in a user's record; None for none."""
    return record[b"plan"].decode(errors="replace").partition(" ")[0] if b"plan" in record else None


def explicit_limits(record: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Return the names of the limits in a user's record that no plan changes."""
    names = record.get(b"explicit", b"").decode(errors="replace").split()
    return tuple(LIMIT_FIELDS[name] for name in names if name in LIMIT_FIELDS)


@dataclass
class Plans:
    """The plans of a project, as texts by their names, and the plans of its users as far as they were looked up lately."""

    texts: Mapping[str, str]
    version: str
    """The version of the code that declares them."""
    find: Callable[[str], str | None] | None = None
    """Returns the text of a user's plan, empty without a plan; None if that is unknown."""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    """Runs a function in a thread that may use the project's database, for coroutines."""
    _known: OrderedDict[str, tuple[str | None, float]] = field(default_factory=OrderedDict)

    def get_text(self, name: str) -> str:
        if not isinstance(name, str) or name not in self.texts:
            hint = suggestion(name, self.texts) if isinstance(name, str) else "expected a name, or None"
            raise TaskValidationError(f"there is no plan {short(name)} in the setting PLANS; {hint}")
        return self.texts[name]

    def get_known(self, user_ids: Iterable[str]) -> dict[str, tuple[str | None, float]]:
        since = monotonic() - PLAN_CACHE_SECONDS
        found = ((user_id, self._known.get(user_id)) for user_id in user_ids)
        return {user_id: entry for user_id, entry in found if entry is not None and entry[1] > since}

    def look_up(self, user_ids: Sequence[str]) -> dict[str, tuple[str | None, float]]:
        assert self.find is not None  # noqa: S101 - the caller has checked it
        found = {}
        for user_id in user_ids:
            looked_up = monotonic()  # before the look-up: the plan may change meanwhile
            found[user_id] = entry = (self.find(user_id), looked_up)
            self._known.pop(user_id, None)
            self._known[user_id] = entry
            if len(self._known) > MAX_CACHED_USERS:
                self._known.popitem(last=False)
        return found

    def forget(self, user_id: str) -> None:
        self._known.pop(user_id, None)


@dataclass
class PlanSource:
    """The plans of this process's queues (`QueueConfig` has none: the plans are the same for all queues)."""

    read: Callable[[], Plans | None] = lambda: None
    """Return the plans; None if there are none. Each push calls it."""


PLAN_SOURCE = PlanSource()
"""The Django app sets the function that reads the plans."""


def find_plans(user_ids: Iterable[str]) -> Operation[list[Any]]:
    """Return the plans of these users, as the last arguments of ``push.lua``; empty without plans."""
    plans = PLAN_SOURCE.read()
    if plans is None or plans.find is None:
        return []
    users = dict.fromkeys(user_ids)
    found = plans.get_known(users)
    if missing := [user_id for user_id in users if user_id not in found]:
        found |= yield Evaluate(partial(plans.look_up, missing), plans.in_thread)
    now = monotonic()
    known = [(user_id, text, to_us(max(0.0, now - at))) for user_id, (text, at) in found.items() if text is not None]
    return [*(part for entry in known for part in entry), plans.version, len(known), PLANS_MARK] if known else []


def set_plan(commands: Commands, user_id: str, name: str | None, now: float | None) -> Operation[None]:
    """Give the user a plan that stays until the next call; with None its usual one, and remove its own limits."""
    plans = PLAN_SOURCE.read()
    if name is not None:
        if plans is None:
            raise TaskValidationError(f"there is no plan {short(name)}: the setting PLANS is empty")
        fields = [("chosen_plan", plans.get_text(name))]
    else:
        if plans is not None:
            plans.forget(user_id)
        found = yield from find_plans([user_id])
        fields = [("explicit", ""), ("plan", found[1] if found else "")]
    yield commands.call("user", [user_id, len(fields), *(part for pair in fields for part in pair)], now)
