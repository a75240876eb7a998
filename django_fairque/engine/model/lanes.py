"""The lanes of a queue: urgent, normal and bulk tasks, across all users (``lua/lib/lanes.lua``).

A task of lane normal has one of the six priorities. Urgent and bulk tasks have no priority: they start in order of
arrival within a user, and the server keeps them as two more classes, above and below the priorities.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.priority import Priority

Lane = Literal["urgent", "normal", "bulk"]
LANES: tuple[Lane, ...] = get_args(Lane)
URGENT_SLA_SECONDS = 60.0
"""The time within which an urgent task should start, if neither it nor its user has another SLA. Bulk tasks have none."""
NO_SLA_SECONDS = 10 * 365 * 86_400.0
"""The SLA of bulk tasks for the server, which needs a number: ten years."""

_CLASSES = {"urgent": 7, "bulk": 0}
_LANES: dict[bytes | str, Lane] = {b"7": "urgent", "7": "urgent", b"0": "bulk", "0": "bulk"}
CLASS_NAMES = {
    _CLASSES["bulk"]: "BULK",
    **{priority.value: priority.name for priority in Priority},
    _CLASSES["urgent"]: "URGENT",
}
"""The names of all classes of tasks by number: those of the priorities, and of the two lanes without priorities."""


class LaneLimits(NamedTuple):
    """The most turns that a fetch gives to tasks below lane urgent, and to bulk tasks. The other slots are reserved."""

    below_urgent: int
    bulk: int


def check_lane(value: Any, name: str) -> Lane:
    """Return the lane. Raises `TaskValidationError` for another value than ``"urgent"``, ``"normal"`` and ``"bulk"``."""
    if value not in LANES:
        raise TaskValidationError(f"{name} must be one of {', '.join(LANES)}, got {short(value)}")
    lane: Lane = value
    return lane


def check_lane_and_priority(lane: str, priority: Priority) -> None:
    """Raise `TaskValidationError` for an urgent or bulk task with a priority."""
    if lane != "normal" and priority is not Priority.NORMAL:
        raise TaskValidationError(
            f"a task of lane {lane} has no priority, got {priority.name}: tasks of this lane start in order of arrival within "
            "a user; leave out one of lane and priority, or give the priority NORMAL"
        )


def class_of(lane: str, priority: int) -> int:
    """Return the number of a task's class for the server."""
    return _CLASSES.get(lane, int(priority))  # before Python 3.11 the text of a `Priority` is its name


def class_name(lane: str, priority: Priority) -> str:
    """Return the name of a task's class for people: ``"URGENT"``, ``"BULK"``, or the name of the priority."""
    return CLASS_NAMES[class_of(lane, priority)]


@lru_cache(16)
def read_lane(form: bytes | str) -> Lane:
    """Return the lane of a priority class (its stored number); ``"normal"`` for an unknown number."""
    return _LANES.get(form, "normal")


def read_priority(form: bytes | str) -> Priority:
    """Return the priority of a class; `Priority.NORMAL` for urgent and bulk tasks. Raises `ValueError` for an unknown class."""
    number = int(form)
    return Priority.NORMAL if number in _CLASSES.values() else Priority(number)


def by_class(counters: Mapping[str, int], kind: str) -> dict[str, int]:
    """Return the numbers of tasks by the name of their class, from counters such as ``depth:3``. The result has all
    priorities, and the lanes urgent and bulk if they have tasks.
    """
    numbers = {name: counters.get(f"{kind}:{number}", 0) for number, name in CLASS_NAMES.items()}
    return {name: value for name, value in numbers.items() if value or name in Priority.__members__}


def default_sla(lane: str, of_priority: float) -> float | None:
    """Return the SLA in seconds of a task that has no other SLA. In lane normal, this is ``of_priority``, the SLA of
    its priority. None for bulk tasks.
    """
    return of_priority if lane == "normal" else {"urgent": URGENT_SLA_SECONDS}.get(lane)
