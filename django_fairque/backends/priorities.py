"""From the 201 priorities of `django.tasks` to the six classes of the queue, in bands around 0."""

from __future__ import annotations

from django_fairque.engine.model.priority import Priority

BANDS = {
    Priority.CRITICAL: 90,
    Priority.VERY_HIGH: 60,
    Priority.HIGH: 20,
    Priority.NORMAL: -19,
    Priority.LOW: -59,
    Priority.VERY_LOW: -100,
}
"""The least number of each class, the highest first."""


def class_of(number: int) -> Priority:
    """The class that a task of priority ``number`` (-100 to 100) is served in."""
    return next(priority for priority, least in BANDS.items() if number >= least)


def number_of(priority: Priority) -> int:
    """A number of that class, for tasks that were sent without one: 0, or the least."""
    return 0 if priority is Priority.NORMAL else BANDS[priority]
