"""Information about the model events of this project, for the command and the admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.options import InvalidOptionsError
from django_fairque.engine.model.records import EventCount
from django_fairque.events import rules

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


@dataclass(frozen=True)
class EventFacts:
    """One declared event. ``queue`` is empty if the event is switched off. ``model`` is None if the event belongs to no
    model but to another signal.
    """

    name: str
    model: str | None
    condition: str
    task: str
    queue: str
    count: EventCount
    problems: tuple[str, ...]


@dataclass(frozen=True)
class EventsOverview:
    """All events in the order of their declaration, and for each queue whose counts are unknown the reason."""

    events: tuple[EventFacts, ...]
    unreachable: Mapping[str, str]


def overview(queue_of: Callable[[str], FairQueue]) -> EventsOverview:
    """Read the counts of each queue once. If a queue does not answer, its events have no counts."""
    declared = rules.rules()
    queues = {rule.name: rule.definition.options.queue for rule in declared if rule.is_on}
    counts: dict[str, EventCount] = {}
    unreachable: dict[str, str] = {}
    for queue in sorted(set(queues.values())):
        try:
            counts |= queue_of(queue).event_counts()
        except InvalidOptionsError:  # noqa: PERF203 - of the project, not of this queue
            raise
        except FairQueueError as error:
            unreachable[queue] = str(error)
    events = [
        EventFacts(
            name=rule.name,
            model=rule.model._meta.label if rule.model is not None else None,
            condition="" if rule.when is None else repr(rule.when),
            task=rule.task_name,
            queue=queues.get(rule.name, ""),
            count=counts.get(rule.name, EventCount()),
            problems=tuple(rule.problems),
        )
        for rule in declared
    ]
    return EventsOverview(tuple(events), unreachable)
